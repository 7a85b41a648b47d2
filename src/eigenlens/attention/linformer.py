"""Linformer: keys and values projected along the length (arXiv 2006.04768)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms
from .contract import Mechanism, Shape
from .registry import mechanism


def segments(n: int, m: int) -> Tensor:
    """Return the mean over each of m segments of n positions, as a matrix (m, n).

    The lengths of segments differ by at most one.
    """
    if not 1 <= m <= n:
        raise EigenlensError(f"{n} positions cannot be cut into {m} segments")
    which = torch.arange(n) * m // n
    member = (which[None] == torch.arange(m)[:, None]).float()
    return member / member.sum(1, keepdim=True)


@dataclass(frozen=True)
class LinformerSettings:
    """`size` m: how many projected keys there are, at most the length."""

    size: int = 64

    def __post_init__(self) -> None:
        if self.size < 1:
            raise EigenlensError(f"size of Linformer must be at least 1, not {self.size}")


@mechanism("linformer", letter="I")
class Linformer(Mechanism):
    """`A = softmax(Q (E K)ᵀ/√d) F` with learned `E, F (H, m, n)`.

    They start as means over m segments of the length n.

    E and F belong to positions. Padding counts as zeros, and so do the missing positions of an
    input shorter than n: their columns are left out of the projection. Segments without a token
    keep a key of zeros, which takes its share of the softmax.

    >>> Linformer.of(heads=4, length=256, size=64)(q, k, v).shape  # (B, 4, T, E) for up to 256 keys
    """

    Settings = LinformerSettings
    directions = ("both ways",)
    own_weights = True
    linear = True
    settings: LinformerSettings

    def __init__(
        self, settings: LinformerSettings | None = None, shape: Shape | None = None
    ) -> None:
        super().__init__(settings, shape)
        H, n = self.shape.heads, self.shape.need(self.name, "length")
        m = min(self.settings.size, n)
        start = segments(n, m).expand(H, m, n)
        self.keys = nn.Parameter(start.clone())  # E
        self.values = nn.Parameter(start.clone())  # F

    @classmethod
    def of(cls, heads: int, length: int, size: int) -> Linformer:
        return cls(LinformerSettings(size), Shape(heads, length=length))

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        # (B or 1, H, m, S)
        E, F = (self._standing(x, k.shape[2], given) for x in (self.keys, self.values))
        # all of them, in the order in which the formula is written
        scores = q @ k.transpose(2, 3) * given.scale
        return (scores @ E.transpose(2, 3)).softmax(3) @ F

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        E, V = (self._standing(x, k.shape[2], given) for x in (self.keys, self.values))
        # (B, H, m, S) × (B, H, S, d)
        return F.scaled_dot_product_attention(q, E @ k, V @ v, scale=given.scale)

    def _standing(self, x: Tensor, S: int, given: CallTerms) -> Tensor:
        """Return the columns of a projection for S keys, zero at padding: (B or 1, H, m, S)."""
        if x.shape[2] < S:
            raise EigenlensError(
                f"this Linformer was made for at most {x.shape[2]} keys, but there are {S}"
            )
        columns = x[None, :, :, :S]
        return columns if given.keys is None else columns * given.keys[:, None, None, :].to(x.dtype)

    def cost(self, n: int, d: int) -> int:
        """Two projections of `nmd`, scores and values of `nmd` each."""
        return 4 * n * self.keys.shape[1] * d
