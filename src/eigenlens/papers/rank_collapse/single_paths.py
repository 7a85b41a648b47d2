"""How far products of patterns along single paths are from rank one, about two centres.

    rank one   `‖P − σ₁ u₁ v₁ᵀ‖ / ‖P‖`, from the best approximation of rank one, as the authors do
    mean row   `‖P − 1 p̄ᵀ‖ / ‖P‖`, from equal rows, as the theory has it

Both are in the composite norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...anatomy.frozen import FrozenStack
from ...collapses.sampling import draw_paths, equal_weights
from ...stats.geometry import composite_norm, relative_residual

MOST_HOPS = 6
"""Products of more random patterns are equal rows but for rounding."""


def from_rank_one(products: Tensor) -> Tensor:
    """The residual of `products (N, T, T)` about their best approximations of rank one, (N,)."""
    u, s, v = torch.linalg.svd(products)
    nearest = s[:, :1, None] * u[:, :, :1] @ v[:, :1]
    return composite_norm(products - nearest) / composite_norm(products)


def path_products(frozen: FrozenStack, hops: int, number: int, seed: int) -> Tensor:
    """The products of the first input's patterns along random paths, (number, T, T) in float64."""
    patterns = [branch.attention.pattern[0].double() for branch in frozen.branches("attention")]
    sample = draw_paths(equal_weights(frozen), hops, number, seed)
    products = []
    for layers, heads in zip(sample.layers.tolist(), sample.heads.tolist()):
        product = torch.eye(patterns[0].shape[-1], dtype=torch.float64)
        for layer, head in zip(layers, heads):
            product = patterns[layer][head] @ product
        products.append(product)
    return torch.stack(products)


def single_paths(frozen: FrozenStack, number: int, seed: int) -> list[dict[str, float]]:
    """A row for each number of hops: both residuals, mean of `number` random paths."""
    rows = []
    for hops in range(1, min(len(frozen.heads), MOST_HOPS) + 1):
        products = path_products(frozen, hops, number, seed)
        rows.append(
            {
                "attention_hops": hops,
                "residual": float(relative_residual(products).mean()),
                "rank one": float(from_rank_one(products).mean()),
            }
        )
    return rows
