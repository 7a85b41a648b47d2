"""Three recurrences with one state matrix per head; the stream decides how much to forget.

    delta          S_t = S_{t−1} (I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ        arXiv 2406.06484
    gated-linear   S_t = α_t S_{t−1} + v_t k_tᵀ                           arXiv 2312.06635
    gated-delta    S_t = α_t S_{t−1} (I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ    arXiv 2412.06464

with `o_t = S_t q_t`, queries and keys of length one (so that erasing contracts and outputs do not
grow with the width; the scale of the call is not used), `β_t = σ(w_β·x_t)` and `α_t = exp(−a
softplus(w_α·x_t + b))`, one decay per head. They are causal. A token at padding neither decays nor
writes: α = 1, β = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms
from .contract import Mechanism, Shape
from .delta_rule import chunked, recurrent
from .registry import mechanism


@dataclass(frozen=True)
class RecurrenceSettings:
    """`chunk`: how many tokens are computed in one product.

    It changes the cost, not the output.
    """

    chunk: int = 32

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise EigenlensError(f"chunk must be at least 1 token, not {self.chunk}")


class Recurrence(Mechanism):
    """What the three recurrences share.

    `gated` ones decay; `erasing` ones have a writing strength.
    """

    Settings = RecurrenceSettings
    directions = ("causal",)
    own_weights = True
    reads_stream = True
    linear = True
    gated: ClassVar[bool]
    erasing: ClassVar[bool]

    def __init__(
        self, settings: RecurrenceSettings | None = None, shape: Shape | None = None
    ) -> None:
        super().__init__(settings, shape)
        heads, width = self.shape.heads, self.shape.need(self.name, "width")
        if self.erasing:
            self.write = nn.Parameter(torch.randn(heads, width) * width**-0.5)  # w_β
        if self.gated:
            self.forget = nn.Parameter(torch.randn(heads, width) * width**-0.5)  # w_α
            # At w_α = 0 the heads begin with 1 − α from 0.001 to 0.1: memories of a thousand tokens
            # down to ten.
            rates = torch.logspace(-3, -1, heads)
            self.bias = nn.Parameter(rates.expm1().log())  # b, so that softplus(b) is the rate
            self.log_rate = nn.Parameter(torch.zeros(heads))  # log a

    def gates(self, x: Tensor, keys: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return α and β of every head and token, (B, H, T) each; None if they are one."""
        alpha = beta = None
        if self.gated:
            asked = F.linear(x, self.forget, self.bias).transpose(1, 2)  # (B, H, T)
            # softplus by logaddexp: compiled, torch is mistaken about the strides of softplus' own
            # gradient.
            alpha = (
                -self.log_rate.exp()[:, None] * torch.logaddexp(asked, torch.zeros_like(asked))
            ).exp()
        if self.erasing:
            beta = F.linear(x, self.write).sigmoid().transpose(1, 2)
        if keys is not None:
            alpha = None if alpha is None else alpha.masked_fill(~keys[:, None], 1.0)
            beta = (
                keys[:, None].to(x.dtype).expand(-1, self.shape.heads, -1)
                if beta is None
                else beta * keys[:, None]
            )
        return alpha, beta

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        """Return `A_tj = β_j q_tᵀ [Π_{i=t…j+1} α_i (I − β_i k_i k_iᵀ)] k_j`.

        Computed by the recurrence itself, with unit vectors for values.
        """
        q, k, alpha, beta = self._read(q, k, given)
        one = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)
        return recurrent(q, k, one.expand(*k.shape[:2], -1, -1), alpha, beta, self.erasing)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        q, k, alpha, beta = self._read(q, k, given)
        return chunked(q, k, v, alpha, beta, self.erasing, self.settings.chunk)

    def cost(self, n: int, d: int) -> int:
        """Multiply-adds per token with chunks of c.

        A product of a chunk's pairs costs `cd`, a product with the state `d²`.

        With erasing there are 6 of the first and 3 of the second, `c²/2` for the solve and `d³/c`
        to carry the state on; otherwise there are 2 and 2. Reading the stream of width C costs `C`
        for α and for β.
        """
        c = min(self.settings.chunk, n)
        a_token = (
            6 * c * d + c * c // 2 + 3 * d * d + d**3 // c
            if self.erasing
            else 2 * c * d + 2 * d * d
        )
        return n * (a_token + (self.gated + self.erasing) * (self.shape.width or 0))

    def _read(
        self, q: Tensor, k: Tensor, given: CallTerms
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return queries and keys of length one, α and β."""
        if q.shape[2] != k.shape[2]:
            raise EigenlensError(
                f"{self.name} reads the stream of every key, so it cannot take {q.shape[2]}"
                f" queries of {k.shape[2]} keys; give the whole sequence"
            )
        assert given.x is not None  # the call was checked
        return F.normalize(q, dim=3), F.normalize(k, dim=3), *self.gates(given.x, given.keys)


@mechanism("delta", letter="N")
class Delta(Recurrence):
    """DeltaNet (arXiv 2406.06484): a new value replaces the old value of its key.

    `S_t = S_{t−1}(I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ`, `o_t = S_t q_t`.

    >>> # x (B, T, 64) → (B, 4, T, E)
    >>> Delta(shape=Shape(heads=4, width=64))(q, k, v, causal=True, x=x).shape
    """

    gated, erasing = False, True


@mechanism("gated-linear", letter="G")
class GatedLinear(Recurrence):
    """Gated linear attention (arXiv 2312.06635): old values decay, per head and token.

    `S_t = α_t S_{t−1} + v_t k_tᵀ`, `o_t = S_t q_t`.

    >>> # x (B, T, 64) → (B, 4, T, E)
    >>> GatedLinear(shape=Shape(heads=4, width=64))(q, k, v, causal=True, x=x).shape
    """

    gated, erasing = True, False


@mechanism("gated-delta", letter="D")
class GatedDelta(Recurrence):
    """Gated DeltaNet (arXiv 2412.06464): old values decay, and new ones replace them.

    `S_t = α_t S_{t−1}(I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ`, `o_t = S_t q_t`.

    >>> # x (B, T, 64) → (B, 4, T, E)
    >>> GatedDelta(shape=Shape(heads=4, width=64))(q, k, v, causal=True, x=x).shape
    """

    gated, erasing = True, True
