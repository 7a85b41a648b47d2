"""Full attention, the yardstick of every other mechanism."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class FullAttention(nn.Module):
    """`softmax(QKᵀ/√d) V` through torch's own kernel, for q, k, v of shape (B, H, n, d)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of one head: `n²d` for the scores, `n²d` for the values."""
        return 2 * n * n * d


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The reference: every score is formed."""
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v
