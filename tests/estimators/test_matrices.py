"""The matrix estimator against Gaussian conditioning with the dense N × N covariance, under every
mask.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eigenlens.captures import Site
from eigenlens.errors import EigenlensError
from eigenlens.estimators.estimator import MatrixModel, SiteStatistics
from eigenlens.estimators.matrices import MatrixConditional
from eigenlens.estimators.rows import RowConditional, RowMean
from eigenlens.estimators.selection import RULES
from eigenlens.stats import RowMoments
from spectra.real import recorded, seen
from stats.calls import call

FIXED = ["full", "grouped", "causal", "causal grouped", "window", "capped", "biased"]


def model_of(scores, valid, rank):
    """Mean, variance and leading eigenvectors of matrices (B, H, T, S) over the valid pairs, by an
    SVD.
    """
    z = scores.masked_fill(~valid, 0).double()
    mean = z.mean(0)
    _, values, vectors = torch.linalg.svd(
        (z - mean).flatten(2).transpose(0, 1), full_matrices=False
    )
    kept = vectors[:, :rank].unflatten(2, valid.shape)
    return MatrixModel(
        valid, mean, z.var(0, unbiased=False), kept, values[:, :rank].square() / len(z)
    )


def statistics(c, rank=3, **extra):
    H, T, S = c.heads, c.q.shape[2], c.k.shape[2]
    model = model_of(c.scores(fill=0.0), c.valid()[0, 0], rank)
    return SiteStatistics(
        Site("self", 0), H, c.k.shape[1], T, S, c.q.shape[3], False, matrices=model, **extra
    )


def conditioned(model, pairs, c, floor=1e-3):
    """`μ + Σ_:P Σ_PP⁻¹ (s_P − μ_P)` with Σ = FFᵀ + diag ψ formed over all valid pairs.

    Input by input.
    """
    B, H, T, S = c.scores().shape
    truth, valid = c.scores(fill=0.0).numpy(), c.valid().expand(B, H, T, S).numpy()
    index = model.valid.flatten().nonzero()[:, 0].tolist()
    found = np.zeros_like(truth)
    for b, h in np.ndindex(B, H):
        F = (model.vectors[h].flatten(1).T * model.eigenvalues[h].sqrt()).numpy()[index]
        variance = model.variance[h].flatten().numpy()[index]
        psi = np.maximum(variance - (F**2).sum(1), floor * variance.mean())
        C = F @ F.T + np.diag(psi)
        mean, s = model.mean[h].flatten().numpy()[index], truth[b, h].ravel()[index]
        P = [index.index(p) for p in pairs[h] if valid[b, h].ravel()[p]]
        estimate = mean + C[:, P] @ np.linalg.solve(C[np.ix_(P, P)], (s - mean)[P])
        found[b, h].ravel()[index] = estimate
    return found * valid, valid


def same(scores, expected, valid):
    assert np.abs(np.where(valid, scores.numpy(), 0) - expected).max() < 1e-8


@pytest.mark.parametrize("form", FIXED)
def test_woodbury_is_dense_conditioning(form):
    fit, c = call(form, batch=8), call(form, seed=1)
    c = replace(c, bias=fit.bias)
    stats = statistics(fit)
    estimator = MatrixConditional.fit(stats, pairs=10, rule="random", seed=1)
    expected, valid = conditioned(stats.matrices, estimator.tensors["pairs"].tolist(), c)
    assert np.abs(expected - c.scores(fill=0.0).numpy()).max() > 0.1
    same(estimator.estimate(c).scores, expected, valid)


@pytest.mark.parametrize("form", ["padded", "causal padded"])
def test_a_padded_input_uses_the_pairs_it_has(form):
    stats = statistics(call("causal" if form.startswith("causal") else "full", batch=8))
    c = call(form)
    assert not c.query_valid.all()
    estimator = MatrixConditional.fit(stats, pairs=14, rule="random")
    estimate = estimator.estimate(c)
    same(estimate.scores, *conditioned(stats.matrices, estimator.tensors["pairs"].tolist(), c))
    valid = c.valid().expand(3, 4, 9, 9).flatten(2)
    there = [
        float(valid[:, h, p].sum() / valid[:, h].sum())
        for h, p in enumerate(estimator.tensors["pairs"])
    ]
    assert estimate.pairs.tolist() == pytest.approx(there)


@pytest.mark.parametrize("form", FIXED)
@pytest.mark.parametrize("rule", RULES)
def test_all_pairs_give_the_exact_scores(form, rule):
    c = call(form)
    estimate = MatrixConditional.fit(statistics(c, rank=2), share=1.0, rule=rule).estimate(c)
    assert torch.allclose(
        estimate.scores.masked_fill(~c.valid(), 0), c.scores(fill=0.0), atol=1e-12
    )
    assert torch.equal(estimate.pairs, torch.ones(4))


@pytest.mark.parametrize("rule", RULES)
def test_chosen_pairs_are_valid_and_distinct(rule):
    c = call("window", batch=8)
    pairs = MatrixConditional.fit(statistics(c), pairs=12, rule=rule).tensors["pairs"]
    assert pairs.shape == (4, 12) and c.valid().flatten()[pairs].all()
    assert all(len(set(head)) == 12 for head in pairs.tolist())


def test_the_work_of_a_full_input_is_the_stated_cost():
    c = call("full", batch=8)
    estimator = MatrixConditional.fit(statistics(c), pairs=20, rule="uniform")
    cost = estimator.cost(9, 5)
    assert cost.per_pair == pytest.approx(20 * 5 + 81 * 3 + 20 * 3) and cost.pairs == pytest.approx(
        20 / 81
    )
    estimate = estimator.estimate(c)
    assert torch.allclose(estimate.work, torch.full((4,), cost.share(9, 5))) and torch.allclose(
        estimate.pairs, torch.tensor(20 / 81)
    )


def test_scores_that_never_vary_are_their_mean():
    c = call("full")
    c = replace(c, q=torch.ones_like(c.q), k=torch.ones_like(c.k))
    for rule in RULES:
        assert torch.allclose(
            MatrixConditional.fit(statistics(c, rank=2), pairs=5, rule=rule).estimate(c).scores,
            c.scores(),
        )


def test_some_heads_are_estimated_as_all_of_them():
    c = call("causal grouped", batch=6)
    estimator = MatrixConditional.fit(statistics(c), pairs=9)
    some = estimator.of_heads([3, 0]).estimate(c.of_heads([3, 0]))
    assert torch.allclose(some.scores, estimator.estimate(c).scores[:, [3, 0]])


def test_other_lengths_and_masks_are_refused():
    stats = statistics(call("causal", batch=8))
    estimator = MatrixConditional.fit(stats, pairs=10)
    with pytest.raises(EigenlensError, match="fitted on matrices of 9×9, but this call has 8×8"):
        estimator.estimate(call("causal", length=8))
    for form in ("full", "window", "padded"):
        with pytest.raises(EigenlensError, match="fitted under another mask"):
            estimator.estimate(call(form))
    with pytest.raises(EigenlensError, match="46 pairs cannot be chosen from 45"):
        MatrixConditional.fit(stats, pairs=46)
    with pytest.raises(EigenlensError, match="rank must be from 1 to 3"):
        MatrixConditional.fit(stats, pairs=4, rank=4)
    with pytest.raises(EigenlensError, match="has no matrices"):
        MatrixConditional.fit(replace(stats, matrices=None), pairs=4)


def test_on_real_heads_pairs_say_more_than_columns_and_chosen_ones_more_than_random():
    """MiniLM, layer 1, n = 32: held-out error over variance about the pooled mean, an eighth of the
    pairs.
    """
    fit, held = recorded("minilm")
    calls = [c for group in held for c in group]
    model = model_of(torch.cat([c.scores() for c in fit]), fit[0].valid()[0, 0], 16)
    rows = seen(RowMoments(), fit).result()[Site("encoder", 1)]
    stats = SiteStatistics(Site("encoder", 1), 12, 12, 32, 32, 32, False, rows=rows, matrices=model)
    floor = RowMean.fit(stats)

    def error(estimator):
        square, variance = 0.0, 0.0
        for c in calls:
            square += float((estimator.estimate(c).scores - c.scores()).square().sum())
            variance += float((floor.estimate(c).scores - c.scores()).square().sum())
        return square / variance

    chosen, random = (
        error(MatrixConditional.fit(stats, share=1 / 8, rule=rule))
        for rule in ("a-optimal", "random")
    )
    assert chosen < random < error(RowMean.fit(stats, mean="query")) < 1
    assert chosen < error(RowConditional.fit(stats, share=1 / 8))
