"""Linformer: keys and values projected along the length (arXiv 2006.04768)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EigenlensError


def segments(n: int, m: int) -> Tensor:
    """The mean over each of m stretches of n positions, as a matrix (m, n); their lengths differ by at most one."""
    if not 1 <= m <= n:
        raise EigenlensError(f"{n} positions cannot be cut into {m} stretches")
    which = torch.arange(n) * m // n
    member = (which[None] == torch.arange(m)[:, None]).float()
    return member / member.sum(1, keepdim=True)


class Linformer(nn.Module):
    """`softmax(Q (E K)ᵀ/√d) (F V)` with learned `E, F (H, m, n)` that start as means over m stretches of the input."""

    def __init__(self, heads: int, n: int, m: int) -> None:
        super().__init__()
        start = segments(n, m).expand(heads, m, n)
        self.keys = nn.Parameter(start.clone())
        self.values = nn.Parameter(start.clone())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        if causal:
            raise EigenlensError("Linformer mixes positions and cannot be causal")
        if k.shape[2] != self.keys.shape[2]:
            raise EigenlensError(f"this Linformer was made for {self.keys.shape[2]} keys, and there are {k.shape[2]}")
        return F.scaled_dot_product_attention(q, self.keys @ k, self.values @ v)  # (H, m, n) × (B, H, n, d)

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of one head: two projections of `nmd`, scores and values of `nmd` each."""
        return 4 * n * self.keys.shape[1] * d


def dense(q: Tensor, k: Tensor, v: Tensor, mechanism: Linformer) -> Tensor:
    """The reference: `Q Kᵀ Eᵀ` in the order in which it is written, all n² scores formed."""
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    return (scores @ mechanism.keys.transpose(1, 2)).softmax(3) @ mechanism.values @ v
