"""Row estimators against Gaussian conditioning written out row by row, under every mask."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eigenlens.captures import MaskShapes
from eigenlens.estimators.row_model import covariance_about
from eigenlens.estimators.rows import CUT, RowConditional, RowLeastSquares
from estimators.dense import M, dense, dense_model, lmmse, row_oracle, same, statistics
from stats.calls import FORMS, call


@pytest.mark.parametrize("rule", ["a-optimal", "uniform"])
@pytest.mark.parametrize("form", FORMS)
def test_the_conditional_mean_is_gaussian_conditioning_on_the_keys_a_row_sees(form, rule):
    fit, c = call(form, batch=6), call(form, seed=1)
    estimator = RowConditional.fit(statistics(fit), keys=M, rule=rule, exact=0)
    expected, valid = lmmse(c, estimator.tensors["keys"].tolist(), *dense_model(fit, fit.group))
    # there is something to estimate
    assert np.abs(expected - c.scores(fill=0.0).numpy()).max() > 0.1
    same(estimator.estimate(c).scores, expected, valid)


def steady(rows, n=9):
    """The pseudo-inverse of rows of eigenvectors without the singular values that only amplify."""
    u, values, v = np.linalg.svd(rows, full_matrices=False)
    keep = values > CUT * np.sqrt(len(rows) / n)
    return (v[keep].T / values[keep]) @ u[:, keep].T


@pytest.mark.parametrize("form", ["full", "causal", "padded", "window"])
def test_least_squares_is_a_projection_on_the_eigenvectors(form):
    fit, c = call(form, batch=6), call(form, seed=1)
    estimator = RowLeastSquares.fit(statistics(fit), keys=M, exact=0)
    mean, covariance = dense_model(fit, 1)

    def conditional(h, mu, row, valid):
        S, r = estimator.tensors["keys"][h].tolist(), int(estimator.tensors["rank"][h])
        A = [j for j in S if valid[j]]
        U = np.linalg.eigh(covariance[h])[1][:, ::-1][:, : int(np.ceil(r * len(A) / M))]
        found = mu + U @ steady(U[A]) @ (row - mu)[A] if A else mu.copy()
        found[A] = row[A]
        return found

    same(estimator.estimate(c).scores, *dense(c, mean, conditional))


def test_the_rank_of_least_squares_is_the_best_on_validation_rows():
    stats, other = statistics(call("full", batch=6)), statistics(call("full", batch=6, seed=2))
    estimator = RowLeastSquares.fit(stats, keys=6, validation=other.rows)
    keys, mean = estimator.tensors["keys"], estimator.tensors["mean"]
    held, C = covariance_about(other.rows, mean, stats), covariance_about(stats.rows, mean, stats)
    for h in range(4):
        U, S, errors = np.linalg.eigh(C[h].numpy())[1][:, ::-1], keys[h].tolist(), []
        for r in range(1, 7):
            W = U[:, :r] @ steady(U[S][:, :r])
            W[S] = np.eye(6)
            E = np.eye(9)
            E[:, S] -= W  # s − ŝ = E (s − μ)
            errors.append(np.trace(E @ held[h].numpy() @ E.T))
        assert int(estimator.tensors["rank"][h]) == 1 + int(np.argmin(errors))


@pytest.mark.parametrize("kind", [RowConditional, RowLeastSquares])
@pytest.mark.parametrize("form", FORMS)
def test_all_keys_give_the_exact_scores(form, kind):
    c = call(form)
    if form.endswith("padded"):  # every input must have the selected keys
        c = replace(
            c, mask=torch.ones(1, 1, 9, 9, dtype=torch.bool), query_valid=None, shapes=MaskShapes()
        )
    estimate = kind.fit(statistics(c), keys=9, exact=0).estimate(c)
    assert torch.allclose(
        estimate.scores.masked_fill(~c.valid(), 0), c.scores(fill=0.0), atol=1e-12
    )
    assert torch.equal(estimate.pairs, torch.ones(4))


def test_a_mask_with_numbers_and_left_padding_is_honoured():
    """Additive scores belong to the columns that are computed.

    Left padding leaves sets that are no prefix.
    """
    c = call("full", batch=4)
    mask = torch.randn(4, 1, 9, 9, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    start = torch.tensor([0, 2, 4, 5])
    real = torch.arange(9) >= start[:, None]
    mask = mask.masked_fill(
        ~(real[:, None, None, :] & torch.ones(9, 9, dtype=torch.bool).tril()), -1e9
    )
    c = replace(c, mask=mask, query_valid=real)
    estimator = RowConditional.fit(statistics(c), keys=4, rule="uniform", exact=0)
    mean, covariance = row_oracle(c)
    same(
        estimator.estimate(c).scores,
        *lmmse(c, estimator.tensors["keys"].tolist(), mean, covariance),
    )
