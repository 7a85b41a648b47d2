"""Nyströmformer: the pattern from landmarks, the means of stretches of queries and keys (arXiv 2102.03902)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import EigenlensError
from .linformer import segments

ITERATIONS = 6


def inverse(a: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """The pseudo-inverse of patterns `a (…, m, m)` by `Z ← ¼ Z (13 I − AZ (15 I − AZ (7 I − AZ)))`.

    The start `Aᵀ/(‖A‖₁ ‖A‖_∞)` makes it converge, cubically; six rounds are what the paper uses.
    """
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    norms = a.abs().sum(-2).amax(-1) * a.abs().sum(-1).amax(-1)
    z = a.transpose(-1, -2) / norms[..., None, None]
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z


class Nystrom(nn.Module):
    """`softmax(Q K̃ᵀ) softmax(Q̃ K̃ᵀ)⁺ softmax(Q̃ Kᵀ) V`, all scores over √d, with m segment means Q̃ and K̃.

    No convolution of the values beside it, which the paper adds: what is compared is the attention.
    """

    def __init__(self, m: int, iterations: int = ITERATIONS) -> None:
        super().__init__()
        self.m, self.iterations = m, iterations

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        left, middle, right = _parts(q, k, self.m, causal)
        return left @ (inverse(middle, self.iterations) @ (right @ v))  # (B, H, n, m) × (B, H, m, d)

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of one head: landmarks `2nd`, scores `2nmd + m²d`, four products a round, values `2nmd + m²d`."""
        m = self.m
        return 2 * n * d + 4 * n * m * d + 2 * m * m * d + 4 * self.iterations * m**3


def dense(q: Tensor, k: Tensor, v: Tensor, mechanism: Nystrom) -> Tensor:
    """The reference: the n × n pattern as one matrix."""
    left, middle, right = _parts(q, k, mechanism.m, causal=False)
    pattern = left @ inverse(middle, mechanism.iterations) @ right  # (B, H, n, n)
    return pattern @ v


def _parts(q: Tensor, k: Tensor, m: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    if causal:
        raise EigenlensError("Nyström attention mixes positions and cannot be causal")
    scale = q.shape[3] ** -0.5
    few_q, few_k = (segments(x.shape[2], m).to(x) @ x for x in (q, k))  # (B, H, m, d)
    left = (q @ few_k.transpose(2, 3) * scale).softmax(3)  # (B, H, n, m)
    middle = (few_q @ few_k.transpose(2, 3) * scale).softmax(3)  # (B, H, m, m)
    right = (few_q @ k.transpose(2, 3) * scale).softmax(3)  # (B, H, m, n)
    return left, middle, right
