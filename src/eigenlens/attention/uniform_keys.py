"""Attention to evenly spaced keys only: what a subset gives without any statistics."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EigenlensError


def evenly_spaced(n: int, m: int) -> Tensor:
    """m of n positions, one in the middle of each of m equal stretches: `⌊(i + ½) n/m⌋`.

    >>> evenly_spaced(8, 2)
    tensor([2, 6])
    """
    if not 1 <= m <= n:
        raise EigenlensError(f"{m} keys cannot be chosen of {n}")
    return ((2 * torch.arange(m) + 1) * n) // (2 * m)


class UniformKeys(nn.Module):
    """`softmax(Q K_Sᵀ/√d) V_S` with the same m evenly spaced keys S for every head; the others are masked."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.m = m

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        if causal:
            raise EigenlensError("evenly spaced keys leave the first queries of a causal model without any")
        chosen = evenly_spaced(k.shape[2], self.m).to(k.device)
        return F.scaled_dot_product_attention(q, k[:, :, chosen], v[:, :, chosen])

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of one head: `nmd` for the scores, `nmd` for the values."""
        return 2 * n * self.m * d


def dense(q: Tensor, k: Tensor, v: Tensor, mechanism: UniformKeys) -> Tensor:
    """The reference: every score is formed, and those of the other keys are masked."""
    n = k.shape[2]
    masked = torch.ones(n, dtype=torch.bool)
    masked[evenly_spaced(n, mechanism.m)] = False
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    return scores.masked_fill(masked, float("-inf")).softmax(3) @ v
