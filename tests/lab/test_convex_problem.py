"""Blocks as linear maps.

Against loops over every index, their own transposes, and the blocks with heads that they stand for.
"""

import numpy as np
import pytest
import torch

from eigenlens.errors import EigenlensError
from eigenlens.lab.convex import (
    FourierOperator,
    GatedAttention,
    LinearAttention,
    LinearMixer,
    Logistic,
    Problem,
    Squared,
    convex_memory,
    heads_from_matrix,
    matrix_of,
    solve,
)

N, S, D, C, P = 4, 5, 3, 2, 3
BLOCKS = ("linear", "gated", "mixer", "fourier")


def made(name, n=N, s=S, d=D, c=C, seed=0):
    source = torch.Generator().manual_seed(seed)
    X = torch.randn(n, s, d, generator=source, dtype=torch.float64)
    H = torch.randn(P, d, d, generator=source, dtype=torch.float64)
    return {
        "linear": lambda: LinearAttention(X, c),
        "gated": lambda: GatedAttention(X, c, H),
        "mixer": lambda: LinearMixer(X, c),
        "fourier": lambda: FourierOperator(X, c),
    }[name]()


def by_loops(name, block, heads):
    """The block with heads, sample by sample and head by head, in numpy."""
    out = np.zeros((block.n, block.s, block.c))
    for i, X in enumerate(block.X.numpy()):
        for W1, W2, p in zip(heads.W1.numpy(), heads.W2.numpy(), heads.gate.tolist()):
            if name == "linear":
                out[i] += X @ W1 @ X.T @ X @ W2
            elif name == "gated":
                out[i] += ((X @ block.H[p].numpy() @ X.T >= 0) * (X @ W1 @ X.T)) @ X @ W2
            elif name == "mixer":
                out[i] += W1 @ X @ W2
            else:
                out[i] += np.outer(circ(X) @ W1.ravel(), W2)
    return out


def circ(X):
    """Every shift of X round the circle of tokens, beside each other: (s, s·d)."""
    s = len(X)
    return np.stack([np.concatenate([X[(t - r) % s] for r in range(s)]) for t in range(s)])


@pytest.mark.parametrize("name", BLOCKS)
def test_the_convex_map_is_the_block_with_the_heads_of_z(name):
    block = made(name)
    Z = torch.randn(block.shape, dtype=torch.float64)
    heads = heads_from_matrix(block, Z)
    assert len(heads) == block.heads
    expected = by_loops(name, block, heads)
    scale = np.abs(expected).max()
    assert np.abs(block.apply(Z).numpy() - expected).max() < 1e-10 * scale
    assert (
        np.abs(block.attend(heads.W1, heads.W2, heads.gate).numpy() - expected).max()
        < 1e-10 * scale
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_heads_have_equal_norms_and_the_least_penalty(name):
    block = made(name)
    Z = torch.randn(block.shape, dtype=torch.float64)
    heads = heads_from_matrix(block, Z)
    torch.testing.assert_close(heads.W1.flatten(1).norm(dim=1), heads.W2.flatten(1).norm(dim=1))
    nuclear = sum(np.linalg.svd(one, compute_uv=False).sum() for one in Z.numpy())
    assert float(heads.penalty) == pytest.approx(nuclear)
    torch.testing.assert_close(matrix_of(block, heads), Z)
    assert len(heads.rows()) == len(heads)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_adjoint_is_the_transpose(name):
    """Both as matrices, made column by column."""
    block = made(name, n=2, s=3, d=2)
    numbers = int(np.prod(block.shape))
    forward = torch.stack(
        [
            block.apply(one.view(block.shape)).flatten()
            for one in torch.eye(numbers, dtype=torch.float64)
        ],
        1,
    )
    outputs = forward.shape[0]
    back = torch.stack(
        [
            block.adjoint(one.view(2, 3, C)).flatten()
            for one in torch.eye(outputs, dtype=torch.float64)
        ],
        1,
    )
    torch.testing.assert_close(back, forward.T, rtol=0, atol=1e-12)


def test_linear_attention_is_the_sum_over_entries_of_the_gram_matrix():
    """Σ_kl G[k,l] X Z^(k,l), with Z^(k,l) = W_1[:,k] W_2[l,:] of one head."""
    block = made("linear")
    W1, W2 = torch.randn(D, D, dtype=torch.float64), torch.randn(D, C, dtype=torch.float64)
    out = torch.zeros(N, S, C, dtype=torch.float64)
    for i, X in enumerate(block.X):
        G = X.T @ X
        for k in range(D):
            for l in range(D):
                out[i] += G[k, l] * X @ torch.outer(W1[:, k], W2[l])
    Z = torch.outer(W1.flatten(), W2.flatten())[None]
    torch.testing.assert_close(block.apply(Z), out)


def test_gated_attention_is_the_sum_over_diagonals():
    """Σ_p Σ_kl diag(x_k) M_p diag(x_l) X Z_p^(k,l), with Z_p^(k,l) = W_1[k,l] W_2 of one head."""
    block = made("gated")
    Z = torch.randn(block.shape, dtype=torch.float64)
    out = torch.zeros(N, S, C, dtype=torch.float64)
    for i, X in enumerate(block.X):
        for p in range(P):
            M = (X @ block.H[p] @ X.T >= 0).double()
            for k in range(D):
                for l in range(D):
                    out[i] += X[:, k].diag() @ M @ X[:, l].diag() @ X @ Z[p].view(D, D, D, C)[k, l]
    torch.testing.assert_close(block.apply(Z), out)


def test_gates_that_are_the_head_s_own_make_a_relu():
    X = torch.randn(N, S, D, dtype=torch.float64)
    W1, W2 = torch.randn(1, D, D, dtype=torch.float64), torch.randn(1, D, C, dtype=torch.float64)
    block = GatedAttention(X, C, W1)
    expected = torch.relu(X @ W1[0] @ X.mT) @ X @ W2[0]
    torch.testing.assert_close(block.apply(torch.outer(W1.flatten(), W2.flatten())[None]), expected)


@pytest.mark.parametrize("s", [1, 4, 5])
def test_the_fourier_operator_is_a_circulant_matrix(s):
    block = made("fourier", s=s)
    Z = torch.randn(block.shape, dtype=torch.float64)
    expected = np.stack([circ(X) @ Z[0].numpy() for X in block.X.numpy()])
    np.testing.assert_allclose(block.apply(Z).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", BLOCKS)
def test_one_token_and_one_number_are_no_special_case(name):
    block = made(name, n=1, s=1, d=1, c=1)
    Z = torch.randn(block.shape, dtype=torch.float64)
    heads = heads_from_matrix(block, Z)
    np.testing.assert_allclose(block.apply(Z).numpy(), by_loops(name, block, heads), atol=1e-12)


def test_losses_by_torch_and_their_conjugates_by_the_supremum():
    labels = torch.tensor([[0, 2], [1, 1]])
    loss = Logistic(labels, 3)
    out = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        out.flatten(0, 1), labels.flatten(), reduction="sum"
    )
    assert loss.value(out).item() == pytest.approx(expected.item())
    torch.testing.assert_close(loss.gradient(out), torch.autograd.grad(expected, out)[0])
    squared = Squared(torch.randn(2, 2, 3, dtype=torch.float64))
    out = out.detach()
    for one in (loss, squared):
        v = one.gradient(out)  # there the supremum is attained at out: ⟨v, out⟩ − F(out)
        assert float(one.conjugate(v)) == pytest.approx(float((v * out).sum() - one.value(out)))
        # else only an upper bound
        assert float(one.conjugate(0.3 * v)) >= float((0.3 * v * out).sum() - one.value(out))
    assert float(loss.conjugate(torch.ones(2, 2, 3, dtype=torch.float64))) == np.inf


def test_memory_is_refused_before_it_is_taken():
    X = torch.randn(300, 200, 16)
    problem = Problem(
        GatedAttention(X, 10, torch.randn(50, 16, 16)), Squared(torch.zeros(300, 200, 10))
    )
    assert convex_memory(problem) > 4 * 300 * 200 * 50 * 16**2
    with pytest.raises(EigenlensError, match=r"takes 3\.\d+ GB, more than the limit of 2 GB"):
        solve(problem, 1.0)
    assert "gram" not in vars(problem.block)
    small = Problem(made("linear"), Squared(torch.zeros(N, S, C)))
    with pytest.raises(EigenlensError, match="limit of 1e-06 GB"):
        solve(small, 1.0, gigabytes=1e-6)


class Held(torch.utils._python_dispatch.TorchDispatchMode):
    """Bytes of all storages that are alive, and the most they ever were."""

    def __init__(self):
        super().__init__()
        self.alive, self.now, self.most = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        import weakref

        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if (
                isinstance(one, torch.Tensor)
                and (key := one.untyped_storage().data_ptr())
                and key not in self.alive
            ):
                size = one.untyped_storage().nbytes()
                self.alive[key] = size
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(one.untyped_storage(), self.gone, key, size)
        return out

    def gone(self, key, size):
        if self.alive.pop(key, None) is not None:
            self.now -= size


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("n", [3, 200])
def test_the_stated_memory_is_that_of_a_run(name, n):
    block = made(name, n=n, s=8, d=6, c=4)
    problem = Problem(block, Squared(torch.randn(n, 8, 4, dtype=torch.float64)))
    with Held() as held:
        solve(problem, 0.1 * problem.beta_max(), most=12)
    given = 8 * block.X.numel()  # was there before
    assert held.most + given <= convex_memory(problem) < 6 * (held.most + given)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LinearAttention(torch.zeros(3, 4), 2), r"\(n, s, d\).*\(3, 4\)"),
        (lambda: LinearAttention(torch.zeros(3, 0, 4), 2), r"at least one"),
        (lambda: LinearAttention(torch.ones(1, 1, 1) * torch.nan, 2), "not finite"),
        (lambda: LinearMixer(torch.zeros(2, 2, 2, dtype=torch.long), 2), "torch.int64"),
        (lambda: FourierOperator(torch.zeros(2, 2, 2), 0), "not 0"),
        (
            lambda: GatedAttention(torch.zeros(2, 2, 3), 2, torch.zeros(4, 2, 2)),
            r"\(P, 3, 3\).*\(4, 2, 2\)",
        ),
        (
            lambda: Problem(made("linear"), Squared(torch.zeros(N, S, C + 1))),
            r"\(4, 5, 2\).*\(4, 5, 3\)",
        ),
        (
            lambda: Problem(made("linear"), Squared(torch.zeros(N, S, C)), pooled=True),
            r"\(4, 1, 2\)",
        ),
        (lambda: Squared(torch.zeros(3)), r"\(n, s, c\)"),
        (lambda: Logistic(torch.tensor([[0, 3]]), 3), "0 to 3 of 3"),
        (lambda: Logistic(torch.zeros(2, 2), 2), "whole numbers"),
        (lambda: heads_from_matrix(made("mixer"), torch.zeros(1, 2, 2)), r"not \(1, 2, 2\)"),
    ],
)
def test_bad_inputs_are_told(make, says):
    with pytest.raises(EigenlensError, match=says):
        make()
