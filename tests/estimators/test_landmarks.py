"""CUR against the formula written out for each input, and where it is exact."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eigenlens.captures import Site
from eigenlens.errors import EigenlensError
from eigenlens.estimators.estimator import SiteStatistics
from eigenlens.estimators.landmarks import RCOND, Landmarks
from eigenlens.estimators.selection import RULES
from eigenlens.stats import RowMoments
from spectra.real import recorded
from stats.calls import FORMS, call


def statistics(c):
    moments = RowMoments()
    moments.update(c)
    rows = moments.result()[c.site]
    return SiteStatistics(
        c.site,
        c.heads,
        c.k.shape[1],
        c.q.shape[2],
        c.k.shape[2],
        c.q.shape[3],
        False,
        rows=rows,
    )


def middles(tokens, m):
    """Evenly spaced valid tokens: the middle of each of m equal parts."""
    at = np.flatnonzero(tokens)
    return at[[int((i + 0.5) * len(at) / m) for i in range(m)]]


def pinv(a, rcond):
    u, s, v = np.linalg.svd(a)
    keep = s > rcond * s[0]
    return (v[keep].T / s[keep]) @ u[:, keep].T


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_the_cur_of_plain_products_then_capped_and_biased(form):
    c, m = call(form), 3
    estimate = Landmarks.fit(statistics(c), landmarks=m).estimate(c)
    B, H, T, S = c.scores().shape
    valid = c.valid().expand(B, H, T, S)
    expected, exact = (
        torch.zeros(B, H, T, S, dtype=torch.float64),
        torch.zeros(B, H, T, S, dtype=torch.bool),
    )
    for b, h in np.ndindex(B, H):
        products = (c.scale * c.q[b, h] @ c.k[b, h // c.group].T).numpy()
        I, J = middles(valid[b, h].any(1), m), middles(valid[b, h].any(0), m)
        cur = products[:, J] @ pinv(products[np.ix_(I, J)], RCOND) @ products[I]
        cur[I], cur[:, J] = products[I], products[:, J]
        cur = c.softcap * np.tanh(cur / c.softcap) if c.softcap else cur
        expected[b, h] = torch.from_numpy(cur) + (c.bias[0, h] if c.bias is not None else 0)
        exact[b, h, I], exact[b, h, :, J] = True, True
    assert torch.allclose(estimate.scores, expected, atol=1e-9)
    assert torch.allclose(estimate.pairs, (exact & valid).sum((0, 2, 3)) / valid.sum((0, 2, 3)))
    assert float((expected - c.raw_scores())[valid].abs().max()) > 0.1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", ["full", "causal grouped", "capped", "biased"])
def test_as_many_landmarks_as_dimensions_are_exact(form, rule):
    c = call(form, length=14, dimension=3)
    estimate = Landmarks.fit(statistics(c), landmarks=9, rule=rule, rcond=1e-9).estimate(c)
    assert torch.allclose(estimate.scores, c.raw_scores(), atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", ["padded", "causal padded"])
def test_landmarks_are_tokens_that_take_part(form, rule):
    """Whatever padding holds changes nothing."""
    c = call(form)
    assert not c.query_valid.all()
    estimator = Landmarks.fit(statistics(c), landmarks=4, rule=rule)
    noise = 100 * (~c.query_valid).double()[:, None, :, None]
    other = replace(c, q=c.q + noise, k=c.k - noise)
    valid = c.valid().expand(c.scores().shape)
    assert torch.allclose(
        estimator.estimate(c).scores[valid], estimator.estimate(other).scores[valid]
    )


def test_keys_of_a_rule_are_the_first_that_an_input_has():
    c = call("padded", batch=12)
    estimator = Landmarks.fit(statistics(c), landmarks=3, rule="a-optimal")
    order = estimator.tensors["order"].tolist()
    scores, truth = estimator.estimate(c).scores, c.raw_scores()
    for b, h in np.ndindex(12, 4):
        first = [j for j in order[h] if c.query_valid[b, j]][:3]
        exact = ((scores - truth)[b, h][c.query_valid[b]].abs().amax(0) < 1e-9) & c.query_valid[b]
        assert set(first) == set(exact.nonzero()[:, 0].tolist())


def test_the_work_of_a_full_input_is_the_stated_cost():
    c = call("full", length=12)
    estimator = Landmarks.fit(statistics(c), share=0.25)
    cost, estimate = estimator.cost(12, 5), estimator.estimate(c)
    assert (
        cost.per_pair == 2 * 12 * 3 * 5 + 12 * 12 * 3 + 12 * 9 + 27
        and cost.pairs == pytest.approx(1 - 0.75**2)
    )
    assert torch.allclose(estimate.work, torch.full((4,), cost.share(12, 5))) and torch.allclose(
        estimate.pairs, torch.tensor(cost.pairs)
    )


def test_some_heads_are_estimated_as_all_of_them():
    c = call("causal grouped")
    estimator = Landmarks.fit(statistics(c), landmarks=4, rule="a-optimal")
    some = estimator.of_heads([3, 0]).estimate(c.of_heads([3, 0]))
    assert torch.allclose(some.scores, estimator.estimate(c).scores[:, [3, 0]])


def test_what_cannot_be_is_said():
    c = call("padded", batch=12)
    fewest = int(c.query_valid.sum(1).min())
    with pytest.raises(
        EigenlensError, match=f"has {fewest} valid queries, fewer than the 8 landmarks"
    ):
        Landmarks.fit(statistics(c), landmarks=8).estimate(c)
    with pytest.raises(EigenlensError, match="no selection rule 'best'"):
        Landmarks.fit(statistics(c), landmarks=3, rule="best")
    with pytest.raises(EigenlensError, match="10 landmarks cannot be chosen from 9"):
        Landmarks.fit(statistics(c), landmarks=10)


def test_leaving_out_small_singular_values_steadies_real_heads():
    """A plain pseudo-inverse blows up on real scores.

    MiniLM, layer 1: with half as many landmarks as dimensions the plain pseudo-inverse blows up.
    """
    calls = [c for group in recorded("minilm")[1] for c in group]
    stats = SiteStatistics(Site("encoder", 1), 12, 12, 32, 32, 32, False)

    def error(**settings):
        estimator = Landmarks.fit(stats, landmarks=12, **settings)
        square = sum(
            float((estimator.estimate(c).scores - c.scores()).square().sum()) for c in calls
        )
        return square / sum(float((s := c.scores()).sub(s.mean()).square().sum()) for c in calls)

    assert error() < 0.1 < error(rcond=1e-7)
