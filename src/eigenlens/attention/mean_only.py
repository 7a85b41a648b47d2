"""Attention with every score replaced by its mean: the floor of all estimators."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import EigenlensError


class MeanOnly(nn.Module):
    """`softmax(μ) V` with the mean row `μ (H, n)` of each head, or a mean `(H, n, n)` of each pair of positions.

    No query and no key enters. With a mean row all queries get the same output, `n d` multiply-adds a head.
    """

    mean: Tensor  # (H, 1 or T, n)

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", (mean[:, None] if mean.ndim == 2 else mean).float())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        if causal and self.mean.shape[1] == 1:
            raise EigenlensError("one mean row for all queries cannot be causal")
        if v.shape[2] != self.mean.shape[2]:
            raise EigenlensError(f"the mean is of {self.mean.shape[2]} keys, and there are {v.shape[2]}")
        scores = self.mean
        if causal:
            n = v.shape[2]
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=v.device).triu(1), float("-inf"))
        out = scores.softmax(2) @ v  # (H, 1 or T, n) × (B, H, n, d)
        return out.expand(-1, -1, q.shape[2], -1)

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of one head: the values, once for each mean row."""
        return self.mean.shape[1] * n * d


def dense(q: Tensor, k: Tensor, v: Tensor, mechanism: MeanOnly) -> Tensor:
    """The reference: the scores are formed and overwritten."""
    scores = q @ k.transpose(2, 3)
    return (torch.zeros_like(scores) + mechanism.mean).softmax(3) @ v
