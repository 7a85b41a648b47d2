"""How well heads of low rank find the nearest of N points.

It is measured by least squares over hard heads, and computed by the theory of rank one.

A head of rank r looks at the point with the largest `(Pᵀq)·(Pᵀx_i)` for a random subspace P (d, r),
and gives that point. Heads are added up with one weight each, by least squares. The error is `E‖y −
Σ_h a_h z_h‖²`, which is 1 for the answer 0.

For N = 2 points and heads of rank one, with directions q_i and k_i, the second moments are known:

    C_ij = E z_i·z_j = ½ + (2/π²) arcsin(q_i·q_j) arcsin(k_i·k_j),   b_i = E z_i·y,   a = C⁻¹b,
    error = 1 − 2bᵀa + aᵀCa
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def draw_nearest(number: int, points: int, d: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points (B, N, d), queries (B, d) and the nearest point to each query (B, d).

    Points and queries are uniform on the sphere.
    """
    drawn = torch.randn(
        number, points + 1, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    drawn /= drawn.norm(dim=2, keepdim=True)
    x, q = drawn[:, :-1], drawn[:, -1]
    return x, q, highest_scored(x, torch.einsum("bnd,bd->bn", x, q))


def highest_scored(x: Tensor, scores: Tensor) -> Tensor:
    """The point of the largest score: x (B, N, d), scores (B, N) → (B, d). Attention at β → ∞."""
    return x[torch.arange(len(x)), scores.argmax(1)]


def subspaces(heads: int, rank: int, d: int, seed: int) -> Tensor:
    """Orthonormal bases of uniform random subspaces, (H, d, r)."""
    drawn = torch.randn(
        heads, d, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return torch.linalg.qr(drawn).Q


def head_outputs(x: Tensor, q: Tensor, bases: Tensor) -> Tensor:
    """What hard heads look at, (B, H, d)."""
    return torch.stack(
        [highest_scored(x, torch.einsum("bnr,br->bn", x @ P, q @ P)) for P in bases], 1
    )


def fitted_error(z: Tensor, y: Tensor, fresh_z: Tensor, fresh_y: Tensor) -> float:
    """The error of `Σ_h a_h z_h` on fresh inputs.

    a are the least-squares weights of z (B, H, d) for y (B, d).
    """
    C, b = torch.einsum("bhd,bgd->hg", z, z), torch.einsum("bhd,bd->h", z, y)
    a = torch.linalg.lstsq(C, b[:, None], driver="gelsd").solution[:, 0]
    return float((fresh_y - torch.einsum("h,bhd->bd", a, fresh_z)).square().sum(1).mean())


def sweep(
    d: int, points: int, samples: int, ranks: Sequence[int], times: Sequence[int], seed: int
) -> list[dict[str, Any]]:
    """Errors at the budget rH = d, and with more heads."""
    x, q, y = draw_nearest(samples, points, d, 2 * seed)
    fresh = draw_nearest(samples, points, d, 2 * seed + 1)
    rows = []
    for more in times:
        for rank in ranks:
            heads = more * d // rank
            bases = subspaces(heads, rank, d, 1000 * seed + rank)
            error = fitted_error(
                head_outputs(x, q, bases), y, head_outputs(fresh[0], fresh[1], bases), fresh[2]
            )
            rows.append({"times": more, "rank": rank, "heads": heads, "seed": seed, "error": error})
    return rows


def sphere_moments(q: Tensor, k: Tensor) -> Tensor:
    """C (H, H) of directions q and k (H, d) on the sphere."""
    angles = [(u @ u.T).clamp(-1, 1).fill_diagonal_(1.0).arcsin() for u in (q, k)]
    return 0.5 + 2 / math.pi**2 * angles[0] * angles[1]


def agreement(d: int, places: int = 20_001) -> float:
    """b of a head with q = k.

    `½ + (1/π) E arcsin|t|`, t one coordinate of a uniform point of the sphere in d dimensions.

    Its point is that of the target where `sgn(k·q) sgn(k·u) = sgn(q·u)`, u the direction from one
    point to the other.
    """
    # t = sin(angle)
    angle = (torch.arange(places, dtype=torch.float64) + 0.5) * (math.pi / 2 / places)
    density = angle.cos() ** (d - 2)
    return 0.5 + float((angle * density).sum() / density.sum()) / math.pi


def rank_one(d: int, heads: int, seed: int) -> dict[str, float]:
    """The error of heads with random q = k by theory, and the limit of ever more of them.

    In the limit all weights are equal, so that `1 − b²/E C_ij` remains.
    """
    k = subspaces(heads, 1, d, seed)[..., 0]
    C, b = sphere_moments(k, k), torch.full((heads,), agreement(d), dtype=torch.float64)
    a = torch.linalg.lstsq(C, b[:, None], driver="gelsd").solution[:, 0]
    return {"theory": float(1 - 2 * b @ a + a @ C @ a), "limit": rank_one_limit(d)}


def rank_one_limit(d: int, places: int = 20_001) -> float:
    """`1 − b²/C̄`, `C̄ = ½ + (2/π²) E arcsin² t`.

    The error that no number of heads of rank one with q = k gets below.
    """
    angle = (torch.arange(places, dtype=torch.float64) + 0.5) * (math.pi / 2 / places)
    density = angle.cos() ** (d - 2)
    return 1 - agreement(d) ** 2 / (
        0.5 + 2 / math.pi**2 * float((angle.square() * density).sum() / density.sum())
    )


def simulated(d: int, heads: int, samples: int, seed: int) -> float:
    """The same error by least squares over random inputs with N = 2."""
    bases = subspaces(heads, 1, d, seed)
    x, q, y = draw_nearest(samples, 2, d, 7_000 + seed)
    fresh = draw_nearest(samples, 2, d, 9_000 + seed)
    return fitted_error(
        head_outputs(x, q, bases), y, head_outputs(fresh[0], fresh[1], bases), fresh[2]
    )
