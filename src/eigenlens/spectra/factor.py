"""A low-rank form of the scatter of score matrices, from a sketch or from the samples themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..stats import MatrixSums, Pairs

CHUNK = 4096


@dataclass
class Half:
    """`vectors` (N, r), float32, orthonormal, and `values` (r,) of a scatter, falling; zero where there are fewer than r."""

    vectors: Tensor
    values: Tensor


@dataclass
class Factor:
    """The leading part of `Σ (x−μ)(x−μ)ᵀ` over n samples `x ∈ R^N`, and of the same with row means removed by P."""

    centred: Half
    row_centred: Half
    mean: Tensor  # μ (N,) float64
    number: float  # n
    energy: float  # Σ ‖x‖²
    row_energy: float  # Σ ‖x − Px‖², the energy of the row means


def nystrom(sums: MatrixSums, head: int, omega: Tensor, pairs: Pairs, rank: int) -> Factor:
    """The factor of one head from `Y = Σ x xᵀ Ω`, with its `omega` (N, ℓ).

    Centring is exact in the sketch, `Y_c = Y − μ (Σx)ᵀ Ω`. With `M = Ωᵀ Y_c = V E Vᵀ` the Nyström form is
    `B Bᵀ`, `B = Y_c V E^{-1/2}`; directions of E below float32 noise are dropped. Cost: 5·N·ℓ².
    """
    number, first = float(sums.number), sums.first[head]
    mean = first / number
    omega = omega.float()
    weights = first.float() @ omega  # (Σx)ᵀ Ω: (ℓ,)
    y = torch.addr(sums.sketch[head].float(), mean.float(), weights, alpha=-1)  # (N, ℓ)
    core = (omega.T @ y).double()
    square = torch.zeros(len(weights), len(weights), dtype=torch.float64)
    for start in range(0, len(y), CHUNK):  # YᵀY has the squares of the eigenvalues: float64, without a copy of the whole
        part = y[start : start + CHUNK].double()
        square += part.T @ part
    inner, v = torch.linalg.eigh((core + core.T) / 2)
    kept = inner > inner[-1].clamp_min(1e-30) * len(inner) * torch.finfo(torch.float32).eps
    root = v[:, kept] / inner[kept].sqrt()  # V E^{-1/2}
    return _factor(y @ root.float(), root.T @ square @ root, mean, number, sums, head, pairs, rank)


def exact(sums: MatrixSums, head: int, pairs: Pairs, rank: int) -> Factor:
    """The factor of one head from all its samples X (n, N), by the n×n Gram matrix of the centred samples. Cost: 2·n²·N."""
    x = sums.sketch[head].double()  # (n, N)
    mean = x.mean(0)
    x = x - mean
    return _factor(x.T.float(), x @ x.T, mean, float(len(x)), sums, head, pairs, rank)


def _factor(
    columns: Tensor, gram: Tensor, mean: Tensor, number: float, sums: MatrixSums, head: int, pairs: Pairs, rank: int
) -> Factor:
    less = pairs.less_row_means(columns.T).T
    energy, row_energy = float(sums.squares[head].sum()), float(sums.row_energy[head])
    return Factor(_half(columns, gram, rank), _half(less, None, rank), mean, number, energy, row_energy)


def pooled(factors: list[Factor], pairs: Pairs, rank: int) -> Factor:
    """The scatter of the samples of several factors about their common mean μ, by one Gram matrix of all their columns.

        Σ_h Z_h Λ_h Z_hᵀ  +  Σ_h n_h (μ_h − μ)(μ_h − μ)ᵀ

    A lower bound, since only the leading columns of all factors together take part, four times `rank` of them; exact
    where those are all there are. Cost: `32·N·rank²`.
    """
    number = sum(f.number for f in factors)
    mean = torch.stack([f.mean * f.number for f in factors]).sum(0) / number
    apart = torch.stack([(f.mean - mean) * f.number**0.5 for f in factors], 1).float()  # (N, heads)
    centred = _leading([f.centred for f in factors], 4 * rank)
    less = _leading([f.row_centred for f in factors], 4 * rank)
    return Factor(
        _half(torch.cat([centred, apart], 1), None, rank),
        _half(torch.cat([less, pairs.less_row_means(apart.T).T], 1), None, rank),
        mean,
        number,
        sum(f.energy for f in factors),
        sum(f.row_energy for f in factors),
    )


def _leading(halves: list[Half], number: int) -> Tensor:
    """The columns `z √λ` of the largest λ among several halves, (N, number)."""
    least = torch.cat([half.values for half in halves]).sort(descending=True).values[:number][-1]
    return torch.cat([h.vectors[:, h.values >= least] * h.values[h.values >= least].sqrt().float() for h in halves], 1)


def _half(columns: Tensor, gram: Tensor | None, rank: int) -> Half:
    """The leading eigenvectors of `B Bᵀ` for `columns` B (N, m), by its Gram matrix BᵀB."""
    gram = (columns.T @ columns).double() if gram is None else gram
    values, w = torch.linalg.eigh((gram + gram.T) / 2)
    values, w = values.flip(0)[:rank], w.flip(1)[:, :rank]
    real = values > values[:1].clamp_min(1e-30) * 1e-10
    scaled = torch.where(real, w / values.clamp_min(1e-300).sqrt(), 0.0)
    vectors, values = columns @ scaled.float(), torch.where(real, values, 0.0)
    if (missing := rank - len(values)) > 0:
        vectors, values = torch.nn.functional.pad(vectors, (0, missing)), torch.nn.functional.pad(values, (0, missing))
    return Half(vectors, values)
