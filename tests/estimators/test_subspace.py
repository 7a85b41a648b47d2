"""Scores from a few coordinates: exact with all of them, optimal with some."""

import numpy as np
import pytest
import torch

from eigenlens.captures import AttentionCall, Site
from eigenlens.errors import EigenlensError
from eigenlens.estimators.adaptive import Cascade, default_ranks
from eigenlens.estimators.subspace import JointSubspace, KeySubspace
from estimators.statistics_of import statistics_of
from stats.calls import FORMS, call

KINDS = [JointSubspace, KeySubspace]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_coordinates_give_the_exact_scores(kind, form):
    each = call(form)
    found = kind.fit(statistics_of(each), rank=5).estimate(each)
    torch.testing.assert_close(
        each.masked(found.scores, 0.0), each.scores(0.0), atol=2e-5, rtol=1e-5
    )
    assert found.work.tolist() == [1.0] * 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tail", [False, True])
def test_the_estimate_is_its_formula(form, tail):
    """Rank-r products of the projected vectors, the row constant, and the positions' mean of the
    rest, pair by pair.
    """
    each, r = call(form), 2
    estimator = JointSubspace.fit(statistics_of(each), rank=r, tail=tail)
    found = estimator.estimate(each).scores
    whole = JointSubspace.fit(statistics_of(each), rank=5)  # all coordinates, in the same order
    to_x, to_y = whole.tensors["to_x"].double(), whole.tensors["to_y"].double()
    real = torch.ones(3, 9, dtype=torch.bool) if each.query_valid is None else each.query_valid
    for head in range(4):
        q, k = each.q[:, head] * each.scale, each.keys[:, head]
        centre = k[real].mean(0)
        x, y = q @ to_x[head], (k - centre) @ to_y[head]
        weight = real.double()[:, :, None]
        x_mean, y_mean = ((z * weight).sum(0) / weight.sum(0).clamp_min(1) for z in (x, y))
        expected = x[..., :r] @ y[..., :r].mT + (q @ centre)[..., None]
        if tail:
            expected = expected + x_mean[:, r:] @ y_mean[:, r:].mT
        if each.softcap:
            expected = torch.tanh(expected / each.softcap) * each.softcap
        if each.bias is not None:
            expected = expected + each.bias[0, head]
        valid = each.valid().expand(3, 4, 9, 9)[:, head]
        torch.testing.assert_close(found[:, head][valid], expected[valid], atol=1e-4, rtol=1e-4)


def test_no_other_subspace_is_better_for_independent_queries_and_keys():
    """E‖qᵀ(I − P)k‖² of the joint truncation against 500 random ones, key axes and query axes.

    The optimum in closed form.
    """
    rng = np.random.default_rng(0)
    D, r = 6, 2
    a, b = (
        rng.normal(size=(D, D)) * 3.0 ** np.arange(D),
        rng.normal(size=(D, D)) * 2.0 ** -np.arange(D),
    )
    queries, keys = a @ a.T, b @ b.T

    def error(p_q, p_k):
        rest = np.eye(D) - p_q @ p_k.T
        return np.trace(rest.T @ queries @ rest @ keys)

    q = torch.from_numpy(rng.multivariate_normal(np.zeros(D), queries, size=(1, 1, 200_000)))
    k = torch.from_numpy(rng.multivariate_normal(np.zeros(D), keys, size=(1, 1, 200_000)))
    each = AttentionCall(Site("self", 0), "self", "", q, k, k, 1.0)
    tensors = JointSubspace.fit(statistics_of(each, rows=False), rank=r, tail=False).tensors
    mine = error(tensors["to_x"][0].double().numpy(), tensors["to_y"][0].double().numpy())
    singular = np.linalg.svd(
        np.linalg.cholesky(queries).T @ np.linalg.cholesky(keys), compute_uv=False
    )
    np.testing.assert_allclose(mine, (singular[r:] ** 2).sum(), rtol=0.02)
    axes = [np.linalg.eigh(m)[1][:, -r:] for m in (queries, keys)]
    others = [error(u, u) for u in axes] + [
        error(u, u) for u in (np.linalg.qr(rng.normal(size=(D, r)))[0] for _ in range(500))
    ]
    assert mine < min(others)


@pytest.mark.parametrize("kind", [*KINDS, Cascade])
def test_a_constant_head_is_no_trouble(kind):
    each = call("full")
    each = AttentionCall(
        each.site, "self", "", torch.zeros_like(each.q), torch.ones_like(each.k), each.v, 1.0
    )
    estimator = kind.fit(statistics_of(each), **({} if kind is Cascade else {"rank": 2}))
    found = estimator.estimate(each)
    torch.testing.assert_close(found.scores, each.scores(), atol=1e-6, rtol=0)
    assert torch.isfinite(found.work).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_cascade_with_no_threshold_to_speak_of_is_exact(form):
    each = call(form)
    found = Cascade.fit(statistics_of(each), threshold=1e-30).estimate(each)
    torch.testing.assert_close(
        each.masked(found.scores, 0.0), each.scores(0.0), atol=2e-5, rtol=1e-5
    )
    torch.testing.assert_close(found.pairs, torch.ones(4))
    torch.testing.assert_close(found.work, torch.ones(4))


def test_a_cascade_that_lets_nothing_pass_costs_its_first_stage():
    each = call("causal")
    found = Cascade.fit(statistics_of(each), threshold=1e9, ranks=(2, 3)).estimate(each)
    assert found.pairs.tolist() == [0.0] * 4
    torch.testing.assert_close(found.work, torch.full((4,), 2 / 5))


@pytest.mark.parametrize("form", ["full", "causal", "causal padded", "grouped"])
def test_pairs_that_pass_are_exact_and_are_those_counted(form):
    each = call(form)
    found = Cascade.fit(statistics_of(each), threshold=0.05, ranks=(1, 3)).estimate(each)
    valid = each.valid().expand(3, 4, 9, 9)
    exact = ((found.scores - each.raw_scores()).abs() < 1e-5) & valid
    share = exact.sum((0, 2, 3)) / valid.sum((0, 2, 3))
    assert 0 < float(found.pairs.mean()) < 1
    torch.testing.assert_close(found.pairs, share.float(), atol=0.02, rtol=0)
    # an exact pair has passed through every stage
    assert bool((found.work >= 1 / 5 + found.pairs * 4 / 5 - 1e-6).all())


def test_less_threshold_means_more_work_and_less_error():
    each = call("full", batch=8, length=24, dimension=8)
    base = Cascade.fit(statistics_of(each))
    work, error = [], []
    for threshold in (1.0, 0.1, 0.02, 0.004):
        found = base.with_threshold(threshold).estimate(each)
        work.append(float(found.work.mean()))
        error.append(float((each.pattern_of(found.scores) - each.pattern()).abs().sum(-1).mean()))
    assert work == sorted(work) and error == sorted(error, reverse=True)


def test_some_heads_of_an_estimator_are_those_heads():
    each = call("causal grouped")
    for estimator in (
        JointSubspace.fit(statistics_of(each), rank=2),
        Cascade.fit(statistics_of(each), threshold=0.05),
    ):
        whole, part = (
            estimator.estimate(each),
            estimator.of_heads([3, 1]).estimate(each.of_heads([3, 1])),
        )
        torch.testing.assert_close(part.scores, whole.scores[:, [3, 1]])
        torch.testing.assert_close(part.work, whole.work[[3, 1]])


def test_shorter_inputs_are_served_and_longer_ones_refused():
    long, short = call("full", length=9), call("full", length=6)
    estimator = JointSubspace.fit(statistics_of(long), rank=5)
    torch.testing.assert_close(
        estimator.estimate(short).scores, short.scores(), atol=2e-5, rtol=1e-5
    )
    with pytest.raises(EigenlensError, match="fitted on 6 keys, but this input has 9"):
        JointSubspace.fit(statistics_of(short), rank=2).estimate(long)
    assert JointSubspace.fit(statistics_of(short), rank=2, tail=False).estimate(
        long
    ).scores.shape == (3, 4, 9, 9)


def test_costs_are_what_is_multiplied():
    cost = JointSubspace.fit(statistics_of(call("full")), rank=2).cost(128, 32)
    assert (cost.per_pair, cost.per_token) == (128 * 128 * 2, 2 * 128 * 32 * 2 + 128 * 32)
    assert cost.share(128, 32) == 2 / 32


@pytest.mark.parametrize("settings", [{"rank": 0}, {"rank": 6}])
def test_a_rank_outside_the_head_is_refused(settings):
    with pytest.raises(EigenlensError, match="rank must be from 1 to the head dimension 5"):
        JointSubspace.fit(statistics_of(call("full")), **settings)


@pytest.mark.parametrize("ranks", [(3, 2), (0, 2), (2, 5), ()])
def test_ranks_that_do_not_rise_are_refused(ranks):
    with pytest.raises(EigenlensError, match="ranks of a cascade"):
        Cascade.fit(statistics_of(call("full")), ranks=ranks)


def test_default_ranks_fit_any_head():
    assert default_ranks(32) == (2, 4, 8, 16)
    assert default_ranks(64) == (4, 8, 16, 32)
    assert default_ranks(3) == (1,)
    assert default_ranks(2) == (1,)
