"""Linear attention (arXiv 2006.16236): a positive feature map instead of the exponential.

Keys are then summed only once.

    o_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j),      φ(x) = elu(x) + 1

Under a causal mask the sums run over j ≤ i: they are a state that every token adds to, the delta
rule without decay and erasing. A chunk of tokens uses the state before it in one product, and its
own keys in a triangular one. The denominator is the numerator for values of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import EigenlensError
from .call_terms import CallTerms
from .contract import Mechanism
from .precision import at_least_float32
from .prefix import causal_product, full_product, ratio
from .registry import mechanism


@dataclass(frozen=True)
class LinearSettings:
    """`chunk`: how many tokens use their own keys in one product, under a causal mask."""

    chunk: int = 32

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise EigenlensError(
                f"chunk of linear attention must be at least 1 token, not {self.chunk}"
            )


def features(x: Tensor) -> Tensor:
    """Return `φ(x) = elu(x) + 1`, which is `x + 1` above zero and `exp x` below.

    This form does not round small values to zero.
    """
    return x.clamp_max(0).exp() + x.relu()


@mechanism("linear", letter="L")
class Linear(Mechanism):
    """`A_ij = φ(q_i)·φ(k_j) / Σ_j φ(q_i)·φ(k_j)` with `φ = elu + 1`.

    The scale of the call is not used.

    >>> Linear()(q, k, v, causal=True).shape  # (B, H, T, E)
    """

    Settings = LinearSettings
    linear = True

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        products = features(q) @ features(k).mT  # (B, H, T, S)
        allowed = given.allowed(q, k)
        products = products if allowed is None else products.masked_fill(~allowed, 0.0)
        return ratio(products, products.sum(3, keepdim=True))

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        phi_q, phi_k = features(at_least_float32(q)), features(at_least_float32(k))
        if given.keys is not None:
            phi_k = phi_k * given.keys[:, None, :, None]
        if given.causal:
            return ratio(
                *causal_product(phi_q, phi_k, at_least_float32(v), self.settings.chunk)
            ).to(v.dtype)
        return ratio(*full_product(phi_q, phi_k, at_least_float32(v))).to(v.dtype)

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds of the causal form, which is the slower one.

        `2nd` for every token of a chunk, and `nd²` each to add to the state and to read it.
        """
        return 2 * n * d * (min(self.settings.chunk, n) + d)
