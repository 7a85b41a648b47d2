"""How similar the tokens of an input are, and how a pattern mixes them: formulas of rank collapse.

Tokens `X (B, T, C)` with `valid (B, T)`, where False marks tokens that are left out (padding,
sinks); patterns `P (B, H, T, S)`. Everything is computed in float64 and always defined: an input
without tokens counts as a zero matrix.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..attention.precision import at_least_float32
from ..errors import EigenlensError
from ..threads import decompose_batch

EXACT = 256
"""Up to this many keys the singular values of a pattern are exact."""

_BLOCK, _STEPS = 8, 6  # columns and powers of the Krylov space beyond


def present(X: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return X in float64, with zero rows for tokens left out, and how many are kept, `(B,)`."""
    if X.ndim != 3 or (valid is not None and valid.shape != X.shape[:2]):
        shape = None if valid is None else tuple(valid.shape)
        raise EigenlensError(
            f"tokens must be (B, T, C) with valid (B, T), not {tuple(X.shape)} with {shape}"
        )
    if valid is None:
        return X.double(), torch.full((len(X),), X.shape[1], device=X.device)
    return torch.where(valid[..., None], X.double(), 0.0), valid.sum(1)


def residual(
    X: Tensor, valid: Tensor | None = None, centre: Literal["mean", "median"] = "mean"
) -> Tensor:
    """Return `res(X) = X − 1xᵀ`, (B, T, C); x is the token mean, or the column median (ℓ1)."""
    if centre not in ("mean", "median"):
        raise EigenlensError(f"centre must be 'mean' or 'median', not {centre!r}")
    Z, n = present(X, valid)
    there = torch.ones(Z.shape[:2], dtype=torch.bool, device=Z.device) if valid is None else valid
    first = Z.gather(1, there.int().argmax(1)[:, None, None].expand(-1, 1, Z.shape[2]))
    Z = torch.where(there[..., None], Z - first, 0.0)  # exactly zero where all tokens are equal
    if centre == "mean":
        x = Z.sum(1, keepdim=True) / n.clamp_min(1)[:, None, None]
    else:
        ordered = Z.masked_fill(~there[..., None], torch.inf).sort(1).values
        # (B, 2)
        middle = torch.stack([(n - 1).clamp_min(0) // 2, n // 2], 1).clamp_max(Z.shape[1] - 1)
        x = ordered.gather(1, middle[..., None].expand(-1, -1, Z.shape[2])).mean(1, keepdim=True)
    return torch.where(there[..., None], Z - x, 0.0)


def composite_norm(X: Tensor) -> Tensor:
    """Return `‖X‖₁,∞ = √(‖X‖₁ ‖X‖_∞)`, (…, T, C) → (…).

    The two norms are the largest absolute column sum and the largest absolute row sum.

    >>> composite_norm(torch.tensor([[1.0, -2.0], [3.0, 0.0]]))  # columns 4 and 2, rows 3 and 3
    tensor(3.4641)
    """
    size = X.abs()
    return (size.sum(-2).amax(-1) * size.sum(-1).amax(-1)).sqrt()


def relative_residual(
    X: Tensor, valid: Tensor | None = None, centre: Literal["mean", "median"] = "mean"
) -> Tensor:
    """Return `‖res(X)‖₁,∞ / ‖X‖₁,∞`, (B,); 0 if all tokens are equal."""
    return spread(X, valid, centre)[0]


def high_frequency(X: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the high-frequency ratio `‖(I − 11ᵀ/n) X‖_F / ‖X‖_F`, (B,)."""
    return spread(X, valid)[1]


def spread(
    X: Tensor, valid: Tensor | None = None, centre: Literal["mean", "median"] = "mean"
) -> tuple[Tensor, Tensor]:
    """Return the relative residual and the high-frequency ratio.

    Both come from one residual if both are relative to the mean.
    """
    Z, _ = present(X, valid)
    to_mean = residual(X, valid)
    R = to_mean if centre == "mean" else residual(X, valid, centre)
    high = _ratio(to_mean.square().sum((1, 2)), Z.square().sum((1, 2))).sqrt()
    return _ratio(composite_norm(R), composite_norm(Z)), high


def ranks(X: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return effective rank, stable rank and participation ratio, each (B,).

    `exp(−Σ p ln p)` with p = σ/Σσ; `‖X‖_F²/‖X‖₂²`; `(Σσ²)²/Σσ⁴`.

    The σ² are the eigenvalues of the smaller Gram matrix, at a quarter of the cost of the singular
    values themselves. Squaring loses those below about 1e-7 σ₁; they count as zero, which changes
    the effective rank by less than one part in a thousand, and the other two not at all.
    """
    Z, _ = present(X, valid)
    Z = Z / _positive(Z.abs().amax((1, 2), keepdim=True))  # squares neither overflow nor vanish
    squares = _eigenvalues(Z @ Z.mT if Z.shape[1] <= Z.shape[2] else Z.mT @ Z)  # (B, m) ascending
    floor = squares[:, -1:] * (squares.shape[1] * torch.finfo(squares.dtype).eps)
    squares = torch.where(squares > floor, squares, 0.0)
    p = squares.sqrt()
    p = p / _positive(p.sum(1, keepdim=True))
    some = squares[:, -1] > 0
    effective = torch.where(some, torch.special.entr(p).sum(1).exp(), 0.0)
    energy = squares.sum(1)
    return (
        effective,
        _ratio(energy, squares[:, -1]),
        _ratio(energy.square(), squares.square().sum(1)),
    )


def mean_cosine(X: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean of `cos(x_i, x_j)` over i ≠ j, (B,); 1 without pairs.

    Computed as `(‖Σ x̂_i‖² − Σ ‖x̂_i‖²) / (n(n−1))`.

    A zero token counts as orthogonal to the others; if all are zero, they count as equal.
    """
    Z, n = present(X, valid)
    unit = Z / _positive(Z.norm(dim=2, keepdim=True))
    own = unit.square().sum((1, 2))
    pairs = (n * (n - 1)).double()
    cosine = (unit.sum(1).square().sum(1) - own) / pairs.clamp_min(1)
    return torch.where((pairs > 0) & (own > 0), cosine.clamp(-1, 1), 1.0)


def restricted(P: Tensor, kept: Tensor) -> Tensor:
    """Return the pattern among only the tokens `kept (B, T)`, (B, H, T, T).

    Other queries and keys are zero, and rows are renormalised.
    """
    both = (kept[:, :, None] & kept[:, None, :]).to(P.dtype)  # (B, T, T)
    P = P * both[:, None]
    return P.div_(_positive(P.sum(3, keepdim=True)))


def row_entropy(P: Tensor) -> Tensor:
    """Return the mean entropy of attention rows in nats, (B, H), over rows that are not zero.

    Logarithms have the precision of P, whose own rounding matters as much; sums are in float64.
    """
    terms = P.clamp_min(torch.finfo(P.dtype).tiny).log_().mul_(P)  # (B, H, T, S)
    rows = (P.amax(3) > 0).sum(2)
    return -terms.sum((2, 3), dtype=torch.float64) / rows.clamp_min(1)


def squared_distances(X: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the squared distances `D_ij = ‖x_i − x_j‖²`, (B, T, T)."""
    R = residual(X, valid)  # the same distances, and less cancels where the tokens are nearly equal
    size = R.square().sum(2)  # (B, T)
    D = (size[:, :, None] + size[:, None, :] - 2 * R @ R.mT).clamp_min_(0)
    D.diagonal(dim1=1, dim2=2).zero_()
    return D


def dirichlet_energy(P: Tensor, D: Tensor) -> Tensor:
    """Return `½ Σ_ij P_ij ‖x_i − x_j‖²`, (B, H), of square patterns and distances `D (B, T, T)`."""
    return (P.flatten(2).double() @ D.flatten(1)[..., None])[..., 0] / 2


def singular_ratio(P: Tensor) -> Tensor:
    """Return `σ₂/σ₁` of every pattern, (B, H).

    Up to `EXACT` keys it comes from the eigenvalues of `PᵀP` (or the singular values of P if σ₂ is
    small): exact to 1e-5 for a float32 pattern, 1e-12 for a float64 one. Beyond, it comes from
    Rayleigh–Ritz on the Krylov space of `PᵀP` with 8 columns and 6 powers: a lower estimate, to
    1e-6 if σ₁₀ is well under σ₂, within 0.02 if dozens of singular values are nearly equal.
    """
    B, H, T, S = P.shape
    flat = at_least_float32(P.reshape(B * H, T, S))
    if min(T, S) < 2 or not len(flat):
        return torch.zeros(B, H, dtype=torch.float64, device=P.device)
    if S > EXACT:
        values = decompose_batch(torch.linalg.svdvals, flat @ _krylov(flat))[:, :2].double()
        return _ratio(values[:, 1], values[:, 0]).reshape(B, H)
    squares = _eigenvalues(flat.mT @ flat)[:, -2:].clamp_min(0).double()  # (B·H, 2) ascending
    ratio = _ratio(squares[:, 0], squares[:, 1]).sqrt()
    if bool((small := ratio < 0.01).any()):
        values = decompose_batch(torch.linalg.svdvals, flat[small])[:, :2].double()
        ratio[small] = _ratio(values[:, 1], values[:, 0])
    return ratio.reshape(B, H)


def _krylov(P: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of `Y, (PᵀP)Y, …, (PᵀP)^m Y`, (N, S, 8·6).

    Y is random and fixed.
    """
    draw = torch.Generator().manual_seed(0)
    Y = (
        torch.randn(P.shape[2], _BLOCK, generator=draw, dtype=torch.float64)
        .to(P)
        .expand(len(P), -1, -1)
    )
    powers = [Y]
    for _ in range(_STEPS - 1):
        Y = P.mT @ (P @ Y)
        Y = Y / _positive(Y.norm(dim=1, keepdim=True))
        powers.append(Y)
    return decompose_batch(lambda some: torch.linalg.qr(some).Q, torch.cat(powers, 2))


def _eigenvalues(G: Tensor) -> Tensor:
    """Return the eigenvalues of Gram matrices, ascending, (N, m).

    From singular values if LAPACK's eigensolver does not converge.
    """
    try:
        return decompose_batch(torch.linalg.eigvalsh, G)
    except torch.linalg.LinAlgError:
        return decompose_batch(torch.linalg.svdvals, G.double()).flip(1).to(G.dtype)


def _positive(x: Tensor) -> Tensor:
    """Return a divisor: 1 in place of 0."""
    return torch.where(x > 0, x, 1.0)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / _positive(whole), 0.0)
