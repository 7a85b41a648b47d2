"""The matrix of queries and keys of a head.

Eigenvalues, penalty and best low rank, against the dense matrix.
"""

import numpy as np
import pytest
import torch

from eigenlens.attention.qk import localisation_penalty, reduced, spectrum, truncate
from eigenlens.errors import EigenlensError

H, C, D = 3, 12, 4


def weights(C=C, D=D, dtype=torch.float64):
    torch.manual_seed(0)
    return (torch.randn(H, C, D, dtype=dtype), torch.randn(H, C, D, dtype=dtype))


@pytest.mark.parametrize(("C", "D"), [(12, 4), (6, 6), (4, 7)])
def test_the_spectrum_is_that_of_the_dense_matrix(C, D):
    w_q, w_k = weights(C, D)
    found = spectrum(w_q, w_k)
    for head in range(H):
        W = (w_q[head] @ w_k[head].T).numpy()
        values = np.linalg.eigvals(W)  # C of them, complex
        mean = values.mean()
        assert abs(mean.imag) < 1e-12 and float(found.mean[head]) == pytest.approx(mean.real)
        assert float(found.variance[head]) == pytest.approx((abs(values - mean) ** 2).mean())
        assert float(found.signed[head]) == pytest.approx(((values - mean) ** 2).mean().real)
        assert float(found.trace[head]) == pytest.approx(np.trace(W))
        assert float(found.trace_of_square[head]) == pytest.approx(np.trace(W @ W))
        assert float(found.square[head]) == pytest.approx((W**2).sum())
        at = found.eigenvalues[head].numpy()
        for one in at[abs(at) > 1e-9]:  # each is an eigenvalue of the large matrix
            assert abs(values - one).min() < 1e-8


def test_eigenvalues_off_the_real_axis_count_in_the_variance_and_lower_the_signed_one():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)  # eigenvalues ±i
    found = spectrum(turn, torch.eye(2, dtype=torch.float64))
    assert float(found.variance) == pytest.approx(1.0) and float(found.signed) == pytest.approx(
        -1.0
    )
    assert found.eigenvalues.is_complex() and float(found.mean) == 0.0


def test_the_penalty_is_the_dense_formula_for_every_head_and_its_gradient_that_of_finite_differences():
    w_q, w_k = weights()
    for head, found in enumerate(localisation_penalty(w_q, w_k)):
        W = w_q[head] @ w_k[head].T
        assert float(found) == pytest.approx(float(W.square().sum() - W.trace() ** 2 / C))
    assert torch.autograd.gradcheck(
        localisation_penalty, (w_q.requires_grad_(), w_k.requires_grad_())
    )


def test_the_penalty_bounds_the_variance_and_is_it_for_a_normal_matrix():
    w_q, w_k = weights()
    assert bool((C * spectrum(w_q, w_k).variance <= localisation_penalty(w_q, w_k)).all())
    symmetric = w_q[0] @ w_q[0].T + torch.diag(torch.arange(C, dtype=torch.float64))
    eye = torch.eye(C, dtype=torch.float64)
    assert float(C * spectrum(symmetric, eye).variance) == pytest.approx(
        float(localisation_penalty(symmetric, eye))
    )
    assert float(localisation_penalty(3 * eye, eye)) == pytest.approx(0.0, abs=1e-10)


def test_descending_the_penalty_in_the_matrix_keeps_its_trace():
    torch.manual_seed(0)
    W = torch.randn(64, 64).requires_grad_()
    before, eye = float(W.detach().trace()), torch.eye(64)
    first = float(localisation_penalty(W.detach(), eye))
    for _ in range(100):
        (gradient,) = torch.autograd.grad(localisation_penalty(W, eye), W)
        assert abs(float(gradient.trace())) < 1e-4
        with torch.no_grad():
            W -= 0.02 * gradient
    assert abs(float(W.detach().trace()) - before) < 1e-5
    assert float(localisation_penalty(W.detach(), eye)) < 0.01 * first


@pytest.mark.parametrize("rank", [0, 1, 3, 4, 9])
def test_truncation_is_the_truncated_svd_of_the_dense_matrix(rank):
    w_q, w_k = weights()
    (cut,) = truncate(w_q, w_k, rank)
    for head in range(H):
        U, s, Vt = np.linalg.svd((w_q[head] @ w_k[head].T).numpy())
        best = (U[:, :rank] * s[:rank]) @ Vt[:rank]
        np.testing.assert_allclose((cut[head] @ w_k[head].T).numpy(), best, atol=1e-10)


def test_biases_are_cut_as_one_more_row():
    w_q, w_k = weights()
    b_q, b_k = torch.randn(H, D, dtype=torch.float64), torch.randn(H, D, dtype=torch.float64)
    cut, bias = truncate(w_q, w_k, 2, b_q, b_k)
    for head in range(H):
        queries = np.vstack([w_q[head].numpy(), b_q[head].numpy()])
        keys = np.vstack([w_k[head].numpy(), b_k[head].numpy()])
        U, s, Vt = np.linalg.svd(queries @ keys.T)
        found = np.vstack([cut[head].numpy(), bias[head].numpy()]) @ keys.T
        np.testing.assert_allclose(found, (U[:, :2] * s[:2]) @ Vt[:2], atol=1e-10)


def test_no_other_queries_of_the_rank_are_nearer_under_a_metric():
    """Against descent over all matrices of the rank, from several starts."""
    w_q, w_k = weights()
    w, S = w_q[0], w_k[0].T @ w_k[0] + torch.eye(D, dtype=torch.float64)
    error = lambda other: torch.einsum("cd,de,ce->", w - other, S, w - other)  # noqa: E731
    ours = float(error(reduced(w, S, 2)))
    best = float("inf")
    for seed in range(3):
        torch.manual_seed(seed)
        a = torch.randn(C, 2, dtype=torch.float64, requires_grad=True)
        b = torch.randn(2, D, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([a, b], max_iter=300, line_search_fn="strong_wolfe")

        def step(a=a, b=b, optimiser=optimiser):
            optimiser.zero_grad()
            loss = error(a @ b)
            loss.backward()
            return loss

        optimiser.step(step)
        best = min(best, float(error((a @ b).detach())))
    assert ours == pytest.approx(best, rel=1e-4)


def test_what_does_not_fit_is_said():
    w_q, w_k = weights()
    with pytest.raises(EigenlensError, match="queries and keys must both be"):
        spectrum(w_q, w_k[:, :-1])
    with pytest.raises(EigenlensError, match="at least 0, not -1"):
        truncate(w_q, w_k, -1)
