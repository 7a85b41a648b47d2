"""The query-key matrix `W = W_Q W_Kᵀ` of a head.

Its eigenvalues, a penalty on their spread, its best low rank.

Shapes: `w_q` and `w_k` are (…, C, D) for a stream of width C and heads of width D, `q = x W_Q`, so
W is (…, C, C) of rank D. Everything here works on D × D matrices; W itself is never computed.
Biases are one more row: `augmented(w, b)` is (…, C + 1, D), which belongs to the stream with a 1
appended.

The eigenvalues and the penalty follow arXiv 2402.02098. The paper's own regulariser was not
available. The penalty is built from its description (it shrinks the spectrum and keeps its mean),
and is therefore called LocAteR-style.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import EigenlensError


@dataclass(frozen=True, eq=False)
class QKSpectrum:
    """The eigenvalues of W for each head, over all d = C of them, of which C − D are zero.

    `eigenvalues` (…, D) are complex: W is not symmetric. `mean` is `tr W / d`, which is real.
    `variance` is the mean of `|λ − mean|²`; `signed` is `tr W²/d − mean²`, the mean of `(λ −
    mean)²`, which complex eigenvalues lower, and which may be negative. The two are equal if all
    eigenvalues are real. `d · variance ≤ ‖W‖²_F − (tr W)²/d`, with equality if W is normal.
    """

    eigenvalues: Tensor
    mean: Tensor
    variance: Tensor
    signed: Tensor
    trace: Tensor
    trace_of_square: Tensor
    square: Tensor
    """`‖W‖²_F`."""


def spectrum(w_q: Tensor, w_k: Tensor) -> QKSpectrum:
    """Return the eigenvalues of `W_Q W_Kᵀ`, from those of `W_KᵀW_Q` (…, D, D).

    They are the same except for zeros.

    >>> spectrum(torch.randn(12, 384, 32), torch.randn(12, 384, 32)).eigenvalues.shape
    torch.Size([12, 32])
    """
    small, d = _small(w_q, w_k), w_q.shape[-2]
    eigenvalues = torch.linalg.eigvals(small)
    trace, trace_of_square = _trace(small), _trace(small @ small)
    mean = trace / d
    # eigenvalues that are zero; negative where a head is wider than the stream
    rest = d - small.shape[-1]
    spread = (eigenvalues - mean[..., None]).abs().square().sum(-1) + rest * mean.square()
    return QKSpectrum(
        eigenvalues,
        mean,
        spread / d,
        trace_of_square / d - mean.square(),
        trace,
        trace_of_square,
        square_norm(w_q, w_k),
    )


def square_norm(w_q: Tensor, w_k: Tensor) -> Tensor:
    """Return `‖W_Q W_Kᵀ‖²_F = tr(W_QᵀW_Q W_KᵀW_K)`, (…,)."""
    return ((w_q.mT @ w_q) * (w_k.mT @ w_k)).sum((-2, -1))


def localisation_penalty(w_q: Tensor, w_k: Tensor) -> Tensor:
    """Return the LocAteR-style penalty `‖W‖²_F − (tr W)²/d` of every head, (…,).

    It is zero only for multiples of the identity.

    Its gradient in W, `2(W − (tr W / d) I)`, has trace zero, so that gradient descent in W keeps
    the mean eigenvalue. In W_Q and W_K, which have rank D < d, the mean changes too.

    >>> localisation_penalty(torch.randn(12, 384, 32), torch.randn(12, 384, 32)).shape
    torch.Size([12])
    """
    return square_norm(w_q, w_k) - _trace(_small(w_q, w_k)).square() / w_q.shape[-2]


def augmented(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Append a bias as a row, (…, C, D) and (…, D) → (…, C + 1, D): `x W + b = [x 1] [W; b]`."""
    return weight if bias is None else torch.cat([weight, bias[..., None, :]], -2)


def truncate(
    w_q: Tensor, w_k: Tensor, rank: int, b_q: Tensor | None = None, b_k: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return queries for which `W_Q′ W_Kᵀ` is the best approximation of `W_Q W_Kᵀ` of `rank`.

    The keys do not change.

    With `W_Q W_Kᵀ = U Σ Vᵀ` the best one is `U_r U_rᵀ W_Q W_Kᵀ`, so `W_Q′ = U_r U_rᵀ W_Q`: keys
    that several heads share need no change. Biases are cut too, as one more row. Returns `(W_Q′,)`,
    with a bias `(W_Q′, b_Q′)`.

    >>> (cut,) = truncate(torch.randn(12, 384, 32), torch.randn(12, 384, 32), rank=4)
    >>> tuple(cut.shape)
    (12, 384, 32)
    """
    keys = augmented(w_k, b_k)
    whole = reduced(augmented(w_q, b_q), keys.mT @ keys, rank)
    return (whole,) if b_q is None else (whole[..., :-1, :], whole[..., -1, :])


def reduced(w_q: Tensor, metric: Tensor, rank: int) -> Tensor:
    """Return the `W_Q′` of `rank` that is nearest to `W_Q` in a metric S ≥ 0.

    (…, C, D), (…, D, D) → (…, C, D).

    It has the least `tr((W_Q − W_Q′) S (W_Q − W_Q′)ᵀ)`. With `S = W_KᵀW_K` that is the error of
    `W_Q W_Kᵀ` in the Frobenius norm. With `W_Q = O R` and `R S^½ = U Σ Vᵀ` it is `O U_r U_rᵀ R`.
    """
    if rank < 0:
        raise EigenlensError(f"rank must be at least 0, not {rank}")
    if rank >= w_q.shape[-1]:
        return w_q.clone()
    values, vectors = torch.linalg.eigh(metric.double())
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]  # S = root rootᵀ
    orthogonal, r = torch.linalg.qr(w_q.double())
    u = torch.linalg.svd(r @ root).U[..., :rank]
    return (orthogonal @ (u @ (u.mT @ r))).to(w_q.dtype)


def _small(w_q: Tensor, w_k: Tensor) -> Tensor:
    """Return `W_KᵀW_Q`, (…, D, D)."""
    if w_q.shape[-2:] != w_k.shape[-2:]:
        raise EigenlensError(
            f"queries and keys must both be (…, C, D), not {tuple(w_q.shape)} and"
            f" {tuple(w_k.shape)}"
        )
    return w_k.mT @ w_q


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
