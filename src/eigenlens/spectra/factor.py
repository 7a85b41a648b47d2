"""A low-rank form of the scatter of score matrices, from a sketch or from the samples themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..stats import MatrixSums


@dataclass
class Factor:
    """`Σ (x−μ)(x−μ)ᵀ ≈ Z diag(λ) Zᵀ` over n samples `x ∈ R^N`, with Z orthonormal."""

    vectors: Tensor  # Z (N, r) float32
    values: Tensor  # λ (r,) float64, falling
    mean: Tensor  # μ (N,) float64
    number: float  # n
    energy: float  # Σ ‖x‖²
    row_energy: float  # Σ ‖x − Px‖², the energy of the row means


def nystrom(sums: MatrixSums, head: int, omega: Tensor, rank: int) -> Factor:
    """The factor of one head from `Y = Σ x xᵀ Ω`, with its `omega` (N, ℓ).

    Centring is exact in the sketch, `Y_c = Y − μ (Σx)ᵀ Ω`. With `M = Ωᵀ Y_c = V E Vᵀ` the Nyström form is
    `B Bᵀ`, `B = Y_c V E^{-1/2}`; directions of E below float32 noise are dropped. Cost: 3·N·ℓ².
    """
    number, first = float(sums.number), sums.first[head]
    mean = first / number
    omega = omega.double()
    y = sums.sketch[head].double() - torch.outer(mean, first @ omega)  # (N, ℓ)
    core = omega.T @ y
    inner, v = torch.linalg.eigh((core + core.T) / 2)
    kept = inner > inner[-1].clamp_min(1e-30) * len(inner) * torch.finfo(torch.float32).eps
    root = v[:, kept] / inner[kept].sqrt()  # V E^{-1/2}
    values, w = torch.linalg.eigh(root.T @ (y.T @ y) @ root)  # of BᵀB
    rank = min(rank, max(int((values > 0).sum()), 1))
    values, w = values.flip(0)[:rank].clamp_min(1e-300), w.flip(1)[:, :rank]
    vectors = y.float() @ (root @ w / values.sqrt()).float()
    return Factor(vectors, values, mean, number, float(sums.squares[head].sum()), float(sums.row_energy[head]))


def exact(sums: MatrixSums, head: int, rank: int) -> Factor:
    """The factor of one head from all its samples X (n, N), by the n×n Gram matrix of the centred samples. Cost: n²·N."""
    x = sums.sketch[head].double()  # (n, N)
    mean = x.mean(0)
    x = x - mean
    values, w = torch.linalg.eigh(x @ x.T)
    rank = min(rank, max(int((values > values[-1] * 1e-12).sum()), 1))
    values, w = values.flip(0)[:rank].clamp_min(1e-300), w.flip(1)[:, :rank]
    vectors = x.T.float() @ (w / values.sqrt()).float()
    return Factor(vectors, values, mean, float(len(x)), float(sums.squares[head].sum()), float(sums.row_energy[head]))


def pooled(factors: list[Factor], rank: int) -> Factor:
    """The scatter of the samples of several factors about their common mean μ, by one Gram matrix of all their columns.

        Σ_h Z_h Λ_h Z_hᵀ  +  Σ_h n_h (μ_h − μ)(μ_h − μ)ᵀ

    A lower bound where the factors are; exact where they are. Each brings its leading `rank` columns.
    """
    number = sum(f.number for f in factors)
    mean = torch.stack([f.mean * f.number for f in factors]).sum(0) / number
    columns = [f.vectors[:, :rank] * f.values[:rank].sqrt().float() for f in factors]
    columns.append(torch.stack([(f.mean - mean) * f.number**0.5 for f in factors], 1).float())
    joined = torch.cat(columns, 1)  # (N, Σ r + heads)
    values, w = torch.linalg.eigh((joined.T @ joined).double())
    kept = min(rank, max(int((values > values[-1] * 1e-7).sum()), 1))
    values, w = values.flip(0)[:kept].clamp_min(1e-300), w.flip(1)[:, :kept]
    vectors = joined @ (w / values.sqrt()).float()
    return Factor(vectors, values, mean, number, sum(f.energy for f in factors), sum(f.row_energy for f in factors))
