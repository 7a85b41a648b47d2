"""Performer: softmax attention by positive orthogonal random features, FAVOR+ (arXiv 2009.14794).

With `x' = x · scale^½` and directions `w_r ~ N(0, I)` that are orthogonal in blocks of D,

    exp(q'·k') = E_w[ exp(w·q' − |q'|²/2) exp(w·k' − |k'|²/2) ],

so `φ_r(x) = exp(w_r·x' − |x'|²/2)` gives `A_ij = φ(q_i)·φ(k_j) / Σ_n φ(q_i)·φ(k_n)`, positive and
in linear time.

The exponents are kept in range without reading other tokens, so that nothing depends on the future.
For a query only the ratios of features matter: the largest is set to 1. For a key, `w_r·k' −
|k'|²/2 = |w_r|²/2 − |w_r − k'|²/2` is at most `|w_r|²/2`; if that is over 60, the excess goes to
the queries' feature r. Exponents below −60 count as −60: keys that far from w_r all weigh the same
(next to nothing) in feature r.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import EigenlensError
from .call_terms import CallTerms
from .contract import Mechanism
from .precision import at_least_float32
from .prefix import causal_product, full_product
from .registry import mechanism

RANGE = 60.0
"""exp(±60) and its products with sums over any number of tokens fit float32."""


@dataclass(frozen=True)
class PerformerSettings:
    """How many random `features`, the `seed` of their directions, and the chunk of tokens."""

    features: int = 64
    seed: int = 0
    chunk: int = 64

    def __post_init__(self) -> None:
        if self.features < 1 or self.chunk < 1:
            raise EigenlensError(
                f"Performer needs at least 1 feature and a chunk of at least 1 token, not {self}"
            )


@mechanism("performer", letter="P")
class Performer(Mechanism):
    """`A_ij = φ(q_i)·φ(k_j) / Σ_n φ(q_i)·φ(k_n)`, an estimate of softmax attention.

    `φ_r(x) = exp(w_r·x' − |x'|²/2)`.

    The directions w follow from the width of a head, `features` and `seed`: they are not weights,
    and all heads and layers share them.

    >>> make("performer", features=128)(q, k, v, causal=True).shape  # (B, H, T, E)
    """

    Settings = PerformerSettings
    linear = True
    settings: PerformerSettings

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        phi_q, phi_k = self.features(q, k, given)
        weights = phi_q @ phi_k.transpose(2, 3)
        allowed = given.allowed(q, k)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, 0.0)
        return (weights / weights.sum(3, keepdim=True).clamp_min(1e-30)).to(q.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        phi_q, phi_k = self.features(q, k, given)
        if given.keys is not None:
            phi_k = phi_k.masked_fill(~given.keys[:, None, :, None], 0.0)
        if given.causal:
            above, below = causal_product(phi_q, phi_k, at_least_float32(v), self.settings.chunk)
        else:
            above, below = full_product(phi_q, phi_k, at_least_float32(v))
        return (above / below.clamp_min(1e-30)).to(v.dtype)

    def features(self, q: Tensor, k: Tensor, given: CallTerms) -> tuple[Tensor, Tensor]:
        """Return `φ(q)` (B, H, T, F), each row with largest entry 1, and `φ(k)` (B, H, S, F)."""
        if given.scale < 0:
            raise EigenlensError(
                "performer takes the square root of the scale, which must be 0 or more, not"
                f" {given.scale}"
            )
        q, k = at_least_float32(q), at_least_float32(k)
        # (F, D)
        w = directions(q.shape[3], self.settings.features, self.settings.seed, q.dtype, q.device)
        excess = (w.square().sum(1) / 2 - RANGE).clamp_min(0)  # (F,)
        a, b = (_exponents(x * given.scale**0.5, w) for x in (q, k))
        a, b = a + excess, b - excess
        return (a - a.amax(3, keepdim=True).detach()).exp(), b.clamp_min(-RANGE).exp()

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of one head.

        Features `2nFd`, sums and reads of `n F (d+1)` each, within chunks of c tokens `n c
        (F+d+1)`.
        """
        features, c = self.settings.features, min(self.settings.chunk, n)
        return 2 * n * features * d + 2 * n * features * (d + 1) + n * c * (features + d + 1)


def _exponents(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.T - x.square().sum(3, keepdim=True) / 2


@torch.compiler.assume_constant_result
def directions(
    width: int, features: int, seed: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return `w (features, width)`, always the same for the same arguments; made once.

    A compiler treats them as constants.
    """
    return _directions(width, features, seed, dtype, device)


@lru_cache(maxsize=64)
def _directions(
    width: int, features: int, seed: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return `w (features, width)` with rows that are orthogonal in blocks of `width`.

    The rows have the lengths of independent normal vectors.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-features // width)
    normal = torch.randn(2, blocks, width, width, dtype=torch.float64, generator=generator)
    orthogonal, triangle = torch.linalg.qr(normal[0])
    # spread evenly over all rotations
    orthogonal = orthogonal * triangle.diagonal(dim1=1, dim2=2).sign()[:, None]
    return (
        (orthogonal * normal[1].norm(dim=2, keepdim=True))
        .flatten(0, 1)[:features]
        .to(device, dtype)
    )
