"""What row estimators make of calls: lengths, groups, precision, cost, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eigenlens.captures import MaskShapes
from eigenlens.errors import EigenlensError
from eigenlens.estimators.columns import column_scores, pair_scores, row_scores
from eigenlens.estimators.rows import RowConditional, RowLeastSquares, RowMean
from estimators.dense import M, by_query, dense, dense_model, lmmse, same, statistics
from stats.calls import FORMS, call


@pytest.mark.parametrize("form", FORMS)
def test_columns_rows_and_pairs_have_the_true_scores(form):
    c = call(form)
    rng = torch.Generator().manual_seed(0)
    index, flat = torch.randint(9, (4, 5), generator=rng), torch.randint(81, (4, 7), generator=rng)
    truth = c.raw_scores()
    for h in range(4):
        assert torch.allclose(column_scores(c, index)[:, h], truth[:, h][:, :, index[h]])
        assert torch.allclose(row_scores(c, index)[:, h], truth[:, h][:, index[h]])
        assert torch.allclose(pair_scores(c, flat)[:, h], truth[:, h].flatten(1)[:, flat[h]])


def test_early_causal_rows_are_exact_and_paid_for():
    c = call("causal", length=12)
    # keys 1, 4, 7, 10; rows 0..3 whole
    estimator = RowConditional.fit(statistics(c), keys=4, rule="uniform")
    estimate = estimator.estimate(c)
    truth = c.scores(fill=0.0)
    assert torch.allclose(
        estimate.scores[:, :, :4].masked_fill(~c.valid()[:, :, :4], 0), truth[:, :, :4]
    )
    seen = [sum(key <= i for key in (1, 4, 7, 10)) for i in range(12)]
    exact = sum(i + 1 if i < 4 else seen[i] for i in range(12))
    assert torch.allclose(estimate.pairs, torch.full((4,), exact / 78))
    rest = sum(a * (i + 1) + a * a for i, a in enumerate(seen) if i >= 4)
    assert torch.allclose(estimate.work, torch.full((4,), (exact * 5 + rest) / (78 * 5)))


def test_the_work_of_a_full_input_is_the_stated_cost():
    c = call("full", length=12)
    estimator = RowConditional.fit(statistics(c), share=0.25)
    cost, estimate = estimator.cost(12, 5), estimator.estimate(c)
    assert (cost.pairs, cost.per_pair) == (0.25, 12 * 3 * 5 + 12 * 12 * 3)
    assert torch.allclose(estimate.work, torch.full((4,), cost.share(12, 5))) and torch.allclose(
        estimate.pairs, torch.tensor(0.25)
    )
    # more keys than dimensions: W K_S is interpolated instead
    wide = RowConditional.fit(statistics(c), keys=8)
    assert wide.cost(12, 5).per_pair == 12 * 8 * 5 + 12 * 12 * 5
    assert torch.allclose(wide.estimate(c).work, torch.full((4,), wide.cost(12, 5).share(12, 5)))


def test_heads_of_a_group_share_keys_and_weights():
    c = call("grouped", batch=6)
    estimator = RowConditional.fit(statistics(c), keys=M)
    for x in (estimator.tensors["keys"], estimator.weights()):
        assert torch.equal(x[0], x[1]) and torch.equal(x[2], x[3]) and not torch.equal(x[0], x[2])


def test_interpolated_keys_give_the_same_scores():
    """`Ŝ = Q (W K_S)ᵀ + 1bᵀ`: the estimator runs as ordinary attention."""
    c = call("full")
    estimator = RowConditional.fit(statistics(c), keys=M)
    W, keys, mean = estimator.weights(), estimator.tensors["keys"], estimator.tensors["mean"]
    k = torch.stack([c.k[:, h][:, keys[h]] for h in range(4)], 1)  # (B, H, m, D)
    b = mean - (W @ mean.gather(1, keys)[..., None])[..., 0]
    scores = c.scaled_q @ (W @ k).transpose(2, 3) + b[:, None]
    other = (
        torch.ones(4, 9, dtype=torch.bool)
        .scatter(1, keys, False)[None, :, None]
        .expand(scores.shape)
    )
    assert torch.allclose(estimator.estimate(c).scores[other], scores[other])


def test_shorter_inputs_use_the_keys_they_have_and_longer_ones_are_refused():
    fit = call("full", batch=6, length=12)
    short = call("full", length=9)
    # keys 1, 3, …, 11
    estimator = RowConditional.fit(statistics(fit), keys=6, rule="uniform", exact=0)
    mean, C = dense_model(fit, 1)

    def conditional(h, mu, row, valid):
        A = [1, 3, 5, 7]
        noise = 1e-4 * np.diag(C[h])[1::2].mean()
        found = mu + C[h][:9][:, A] @ np.linalg.solve(
            C[h][np.ix_(A, A)] + noise * np.eye(4), (row - mu)[A]
        )
        found[A] = row[A]
        return found

    same(estimator.estimate(short).scores, *dense(short, mean[:, :9], conditional))
    with pytest.raises(EigenlensError, match="fitted on 12 keys, but this input has 13"):
        estimator.estimate(call("full", length=13))


@pytest.mark.parametrize("form", ["full", "causal"])
def test_a_mean_by_query_conditions_about_it(form):
    fit, c = call(form, batch=6), call(form, seed=1)
    s, v = fit.scores(fill=0.0).numpy(), fit.valid()[0, 0].double().numpy()
    mean = s.mean(0)
    z = (s - mean) * v
    C = np.einsum("bhij,bhik->hjk", z, z) / (len(s) * v.T @ v)
    values, vectors = np.linalg.eigh(C)
    C = np.einsum("hja,ha,hka->hjk", vectors, values.clip(0), vectors)
    estimator = RowConditional.fit(
        statistics(fit, matrices=by_query(fit)), keys=M, mean="query", exact=0
    )
    same(estimator.estimate(c).scores, *lmmse(c, estimator.tensors["keys"].tolist(), mean, C))
    floor = RowMean.fit(statistics(fit, matrices=by_query(fit)), mean="query").estimate(c)
    assert np.allclose(floor.scores.numpy(), np.broadcast_to(mean, floor.scores.shape))


def test_without_matrices_the_mean_is_pooled():
    stats = statistics(call("full"))
    assert torch.equal(
        RowConditional.fit(stats, keys=M, mean="query").weights(),
        RowConditional.fit(stats, keys=M).weights(),
    )


def test_constant_scores_are_estimated_by_their_mean():
    c = call("full")
    c = replace(c, q=torch.ones_like(c.q), k=torch.ones_like(c.k))
    for kind in (RowConditional, RowLeastSquares):
        assert torch.allclose(kind.fit(statistics(c), keys=M).estimate(c).scores, c.scores())


def test_the_mean_is_free():
    c = call("causal")
    estimate = RowMean.fit(statistics(c)).estimate(c)
    assert torch.allclose(estimate.scores[0, 0, 0], torch.from_numpy(dense_model(c, 1)[0])[0])
    assert not estimate.pairs.any() and not estimate.work.any()


@pytest.mark.parametrize("form", FORMS)
def test_some_heads_are_estimated_as_all_of_them(form):
    c = call(form, batch=6)
    assert torch.allclose(c.of_heads([3, 0]).scores(), c.scores()[:, [3, 0]])
    estimator = RowConditional.fit(statistics(c), keys=M)
    some = estimator.of_heads([3, 0]).estimate(c.of_heads([3, 0]))
    assert torch.allclose(some.scores, estimator.estimate(c).scores[:, [3, 0]])


def test_heads_with_masks_of_their_own_see_their_own_keys():
    c = call("full", batch=6)
    width = torch.tensor([3, 5, 7, 9])[:, None, None]
    distance = torch.arange(9)[:, None] - torch.arange(9)
    c = replace(c, mask=((distance >= 0) & (distance < width))[None])
    estimator = RowConditional.fit(statistics(c), keys=M, exact=0)
    same(
        estimator.estimate(c).scores,
        *lmmse(c, estimator.tensors["keys"].tolist(), *dense_model(c, 1)),
    )
    assert torch.allclose(c.of_heads([3, 0]).scores(), c.scores()[:, [3, 0]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [RowConditional, RowLeastSquares, RowMean])
def test_half_precision_is_estimated_in_it(form, kind):
    fit = call(form)
    c = replace(
        fit, q=fit.q.bfloat16(), k=fit.k.bfloat16(), v=fit.v.bfloat16(), shapes=MaskShapes()
    )
    settings = {} if kind is RowMean else {"keys": M, "exact": 0}
    found, expected = (kind.fit(statistics(fit), **settings).estimate(x).scores for x in (c, fit))
    wide = c.valid().expand(found.shape)
    assert torch.allclose(found[wide].double(), expected[wide], atol=0.1, rtol=0.05)


def test_what_cannot_be_is_said():
    c = call("padded", batch=12)
    fewest = int(c.query_valid.sum(1).min())
    estimator = RowConditional.fit(statistics(call("full", batch=6)), keys=8)
    with pytest.raises(
        EigenlensError, match=f"has {fewest} valid keys, fewer than the 8 that rows-lmmse computes"
    ):
        estimator.estimate(c)
    stats = statistics(c)
    with pytest.raises(EigenlensError, match="the number of keys or their share"):
        RowConditional.fit(stats)
    with pytest.raises(EigenlensError, match="no selection rule"):
        RowConditional.fit(stats, keys=2, rule="best")
    with pytest.raises(EigenlensError, match="mean must be 'pooled' or 'query', not 'best'"):
        RowConditional.fit(stats, keys=2, mean="best")
    with pytest.raises(EigenlensError, match="has no rows"):
        RowMean.fit(replace(stats, rows=None))
