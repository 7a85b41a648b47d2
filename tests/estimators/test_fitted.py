"""Projections fitted on attended pairs: sums, solutions and what they are better at."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eigenlens.captures import AttentionCall, Site
from eigenlens.errors import EigenlensError
from eigenlens.estimators import fitted
from eigenlens.estimators.fitted import FittedSubspace, alternate, pair_sums
from eigenlens.estimators.subspace import JointSubspace
from estimators.statistics_of import statistics_of
from stats.calls import FORMS, call


def with_pairs(train, check):
    statistics = statistics_of(*train, *check, rows=False)
    parts = pair_sums(statistics), pair_sums(statistics)
    for part, calls in zip(parts, (train, check)):
        for each in calls:
            part.add(each)
    return replace(statistics, pairs=parts)


def centred_rows(each, head, x, y):
    """Scores, x and y of every valid query: s̃ (n,), x (R,), ỹ (n, R) over the keys it sees."""
    valid = each.valid().expand(*each.q.shape[:3], each.k.shape[2])
    for b, i in np.ndindex(valid.shape[0], valid.shape[2]):
        seen = valid[b, head, i]
        if seen.any():
            q, k = each.q[b, head, i] * each.scale, each.keys[b, head][seen]
            s, ys = k @ q, k @ y
            yield (s - s.mean()).numpy(), (q @ x).numpy(), (ys - ys.mean(0)).numpy()


@pytest.mark.parametrize("form", FORMS)
def test_the_sums_know_the_error_of_every_product(form):
    """The quadratic form against the squared errors of all rows, one by one."""
    each, other = call(form, seed=1), call(form, seed=2)
    statistics = statistics_of(each, other, rows=False)
    first, second = pair_sums(statistics), pair_sums(statistics)
    first.add(each)
    second.add(other)
    sums = first.merged(second)
    rng = np.random.default_rng(0)
    for head in range(4):
        M, total, number = rng.normal(size=(5, 5)), 0.0, 0
        for part in (each, other):
            for s, x, y in centred_rows(part, head, sums.to_x[head], sums.to_y[head]):
                total += ((s - y @ (M.T @ x)) ** 2).sum()
                number += len(s)
        np.testing.assert_allclose(
            sums.quadratic(head)(torch.from_numpy(M)), total / number, rtol=1e-5
        )


def test_long_inputs_are_sampled_evenly():
    """Every third of 96 queries, and others in the next inputs: three inputs alike make one."""
    one = call("causal", batch=1, length=96)
    three = AttentionCall(
        one.site, "self", "", *(x.expand(3, -1, -1, -1) for x in (one.q, one.k, one.v)), 0.3,
        causal=True,
    )  # fmt: skip
    sums = pair_sums(statistics_of(one, rows=False))
    sums.add(three)
    assert sums.sums["number"].tolist() == [96 * 97 / 2] * 4
    M = torch.eye(5, dtype=torch.float64) / 2
    total = 0.0
    for s, x, y in centred_rows(one, 1, sums.to_x[1], sums.to_y[1]):
        total += ((s - y @ (M.numpy().T @ x)) ** 2).sum()
    np.testing.assert_allclose(sums.quadratic(1)(M), total / (96 * 97 / 2), rtol=1e-5)


def test_each_turn_is_the_least_squares_solution():
    """The last map, given the other, by numpy's least squares on all pairs."""
    each = call("causal", batch=6, seed=3)
    sums = pair_sums(statistics_of(each, rows=False))
    sums.add(each)
    f = sums.quadratic(2)
    start = torch.eye(5, dtype=torch.float64)[:, :2]
    A, B = alternate(f, start)
    design, wanted = [], []
    for s, x, y in centred_rows(each, 2, sums.to_x[2], sums.to_y[2]):
        design.append(np.einsum("p,jc->jcp", x @ A.numpy(), y).reshape(len(s), -1))
        wanted.append(s)
    solved = np.linalg.lstsq(np.concatenate(design), np.concatenate(wanted), rcond=None)[0]
    np.testing.assert_allclose(B.numpy().ravel(), solved, rtol=1e-3, atol=1e-4)
    assert f(A @ B.T) < f(start @ start.T)


def dependent(seed, batch=24, length=20):
    """Causal calls whose queries look for what few keys are: those of their own input's kind.

    Every input has a direction of its own in which its queries and keys are large together.
    """
    rng = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(batch, 4, length, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    kind = torch.randint(0, 3, (batch,), generator=rng)
    for b in range(batch):
        q[b, :, :, kind[b]] *= 6  # the other three directions are as large, but never together
        k[b, :, :, kind[b]] *= 6
        q[b, :, :, 3 + kind[b]] *= 8
        k[b, :, :, 3 + (kind[b] + 1) % 3] *= 8
    return AttentionCall(Site("self", 0), "self", "", q, k, k, 0.3, causal=True)


def error(estimator, each):
    """Squared error over valid pairs without the mean of each row."""
    valid = each.valid().expand(*each.q.shape[:3], each.k.shape[2]).double()
    wrong = (estimator.estimate(each).scores - each.raw_scores()) * valid
    mean = wrong.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True)
    return ((wrong - mean) * valid).square().sum((0, 2, 3))


def test_queries_and_keys_that_depend_on_each_other_are_estimated_better():
    statistics = with_pairs([dependent(1)], [dependent(2)])
    fresh = dependent(3)
    mine = FittedSubspace.fit(statistics, rank=3, tail=False)
    joint = JointSubspace.fit(statistics, rank=3, tail=False)
    assert bool((error(mine, fresh) < 0.6 * error(joint, fresh)).all())


def test_where_nothing_is_to_be_gained_it_is_near_joint():
    """Independent normal queries and keys without a mask: the best is `joint`."""
    rng = torch.Generator().manual_seed(0)
    scale = torch.tensor([3.0, 2.0, 1.5, 1.0, 0.7, 0.5])

    def normal():
        q, k = (torch.randn(40, 2, 20, 6, generator=rng, dtype=torch.float64) for _ in range(2))
        return AttentionCall(Site("self", 0), "self", "", q * scale, k * scale, k, 0.3)

    statistics = with_pairs([normal()], [normal()])
    fresh = normal()
    mine = FittedSubspace.fit(statistics, rank=3, tail=False)
    joint = JointSubspace.fit(statistics, rank=3, tail=False)
    ratio = error(mine, fresh) / error(joint, fresh)
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=0.02, rtol=0)


def test_a_fit_that_other_documents_do_not_confirm_is_not_taken():
    """The other documents' queries and keys are independent: their error is least for `joint`."""
    statistics = with_pairs([dependent(1)], [dependent(2)])
    train, check = statistics.pairs
    joint = JointSubspace.fit(statistics, rank=3)
    assert not torch.equal(
        FittedSubspace.fit(statistics, rank=3).tensors["to_x"], joint.tensors["to_x"]
    )
    for head in range(4):
        q = statistics.moments.query_second[head] / statistics.moments.query_number
        spread = (check.to_x[head].T @ q @ check.to_x[head]).diagonal()
        i, j = np.triu_indices(6)
        variances = torch.where(torch.from_numpy(i == j), spread[i], 0.0)
        check.sums["const"][head] = spread.square().sum()
        check.sums["linear"][head] = spread.square().diag()
        check.sums["four"][head] = torch.outer(variances, variances)
        check.sums["number"][head] = 1
    mine = FittedSubspace.fit(replace(statistics, pairs=(train, check)), rank=3)
    for name in ("to_x", "to_y"):
        assert torch.equal(mine.tensors[name], joint.tensors[name])


@pytest.mark.parametrize("form", ["causal", "causal grouped", "causal padded", "window", "biased"])
def test_the_tail_is_the_positions_mean_of_what_is_left_out(form):
    each, r = call(form, batch=8), 2
    statistics = with_pairs([call(form, batch=8, seed=1)], [call(form, batch=8, seed=2)])
    plain = FittedSubspace.fit(statistics, rank=r, tail=False)
    tailed = FittedSubspace.fit(statistics, rank=r).estimate(each)
    sums = statistics.moments
    q = sums.query_positions / sums.query_counts.clamp_min(1)[:, None]
    k = sums.key_positions / sums.key_counts.clamp_min(1)[:, None]
    k = (k - (sums.key_first / sums.key_number)[:, None]).repeat_interleave(each.group, 0)
    rest = torch.eye(5) - plain.tensors["to_x"].double() @ plain.tensors["to_y"].double().mT
    found = tailed.scores - plain.estimate(each).scores
    expected = (q @ rest @ k.mT).expand_as(found)
    torch.testing.assert_close(
        each.masked(found, 0.0), each.masked(expected, 0.0), atol=1e-4, rtol=1e-4
    )
    assert tailed.work.tolist() == pytest.approx([r / 5] * 4)


def test_all_coordinates_are_exact_and_some_heads_are_those_heads():
    each = call("causal grouped")
    statistics = with_pairs([call("causal grouped", seed=1)], [call("causal grouped", seed=2)])
    found = FittedSubspace.fit(statistics, rank=5).estimate(each)
    torch.testing.assert_close(
        each.masked(found.scores, 0.0), each.scores(0.0), atol=2e-5, rtol=1e-5
    )
    some = FittedSubspace.fit(statistics, rank=2)
    part = some.of_heads([3, 1]).estimate(each.of_heads([3, 1]))
    torch.testing.assert_close(part.scores, some.estimate(each).scores[:, [3, 1]])


def test_wide_heads_are_fitted_in_their_first_coordinates(monkeypatch):
    """In 4 of 6: less than `joint` on the pairs it was fitted on; with 4 it is `joint`."""
    monkeypatch.setattr(fitted, "MOST", 4)
    one, other = dependent(1), dependent(2)
    statistics = with_pairs([one], [other])
    mine, joint = (
        [kind.fit(statistics, rank=r, tail=False) for r in (2, 4)]
        for kind in (FittedSubspace, JointSubspace)
    )
    assert bool((error(mine[0], one) < error(joint[0], one)).all())
    assert torch.equal(mine[1].tensors["to_x"], joint[1].tensors["to_x"])


def test_a_constant_head_is_no_trouble():
    each = call("causal")
    flat = AttentionCall(
        each.site, "self", "", torch.zeros_like(each.q), torch.ones_like(each.k), each.v, 1.0,
        causal=True,
    )  # fmt: skip
    found = FittedSubspace.fit(with_pairs([flat], [flat]), rank=2).estimate(flat)
    torch.testing.assert_close(found.scores, flat.raw_scores(), atol=1e-6, rtol=0)


def test_what_is_missing_or_outside_is_named():
    statistics = statistics_of(call("causal"), rows=False)
    with pytest.raises(EigenlensError, match="no sums over attended pairs of"):
        FittedSubspace.fit(statistics, rank=2)
    with pytest.raises(EigenlensError, match="rank must be from 1 to the head dimension 5, not 6"):
        FittedSubspace.fit(statistics, rank=6)
