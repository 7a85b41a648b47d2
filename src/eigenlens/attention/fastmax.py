"""Fastmax (FAST, arXiv 2402.07901): a polynomial that factorises instead of the exponential.

    A_ij = f(q̂_i·k̂_j) / Σ_n f(q̂_i·k̂_n)        f(x) = Σ_{l≤p} xˡ/l!

For p = 2, `f(x) = ½ + ½ (1+x)²`, and with `y = [x̂, 1]` the square is a product of features,

    ½ (y_q·y_k)² = Σ_a ½ (y_a²)_q (y_a²)_k + Σ_{a<b} (y_a y_b)_q (y_a y_b)_k,

one for each of the `C(D+2, 2)` unordered pairs; the other ½ is added to that of 1·1. For p = 1 the
features are y itself. So the rank of A is at most `C(D+p, p)`, and all it needs from the keys is `S
= Σ_j φ(k_j) [v_j, 1]ᵀ`, C(D+p, p) × (E+1) numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import EigenlensError
from .call_terms import CallTerms
from .contract import Mechanism
from .precision import at_least_float32
from .prefix import causal_product, full_product, ratio, with_ones
from .registry import mechanism

NORMALISE = ("token", "centred", "tokens", "none")
TINY = 1e-12
INSIDE = 0.999
"""The length of keys for p = 1.

A product of two unit vectors can be −1; if all keys of a row were there, 1 + x would give 0/0.
"""


@dataclass(frozen=True)
class FastmaxSettings:
    """The order `p` of the polynomial, how queries and keys are prepared, and the chunk of tokens.

    `normalise`: "token" gives every vector unit length; "centred" first subtracts the mean over its
    features; "tokens" divides by the largest length of any token of the input, which under a causal
    mask would reveal the future; "none" takes the scaled scores as they are. For p = 1 "none" is
    refused: 1 + x is negative below −1, and so would be A.
    """

    p: int = 2
    normalise: str = "token"
    chunk: int = 64

    def __post_init__(self) -> None:
        if self.p not in (1, 2):
            raise EigenlensError(f"p of fastmax must be 1 or 2, not {self.p}")
        if self.normalise not in NORMALISE:
            raise EigenlensError(
                f"normalise of fastmax must be one of {', '.join(NORMALISE)}, not"
                f" {self.normalise!r}"
            )
        if self.chunk < 1:
            raise EigenlensError(f"chunk of fastmax must be at least 1 token, not {self.chunk}")
        if self.p == 1 and self.normalise == "none":
            raise EigenlensError(
                "fastmax with p=1 and normalise='none' can give keys negative weights: 1 + x is"
                " negative below −1; choose p=2 or another normalise"
            )


@mechanism("fastmax", "fast")
class Fastmax(Mechanism):
    """`A_ij = f(q̂_i·k̂_j) / Σ_n f(q̂_i·k̂_n)`, `f(x) = 1 + x (+ x²/2)`, in linear time.

    The scale of a call is used only with normalise="none"; normalised vectors ignore it. For p = 1
    normalised keys have length 0.999, not 1, so that `f` stays above zero.

    >>> make("fastmax", p=1)(q, k, v, causal=True).shape  # (B, H, T, E)
    """

    Settings = FastmaxSettings
    linear = True
    settings: FastmaxSettings

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        q, k = self.normalised(q, k, given)
        weights = self.kernel(q @ k.transpose(2, 3))
        allowed = given.allowed(q, k)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, 0.0)
        return ratio(weights, weights.sum(3, keepdim=True))

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        dtype, v = v.dtype, at_least_float32(v)
        q, k = self.normalised(at_least_float32(q), at_least_float32(k), given)
        if self.settings.p == 1:
            a, b = with_ones(q), with_ones(k)  # y: (B, H, T, D+1)
            if given.keys is not None:
                b = b.masked_fill(~given.keys[:, None, :, None], 0.0)
            return ratio(
                *(
                    causal_product(a, b, v, self.settings.chunk)
                    if given.causal
                    else full_product(a, b, v)
                )
            ).to(dtype)
        values = with_ones(v)
        if given.keys is not None:
            values = values.masked_fill(~given.keys[:, None, :, None], 0.0)
        out = (self._causal if given.causal else self._full)(
            q, k, values.transpose(2, 3)
        ).transpose(2, 3)
        return ratio(out[..., :-1], out[..., -1:]).to(dtype)

    def normalised(self, q: Tensor, k: Tensor, given: CallTerms) -> tuple[Tensor, Tensor]:
        """Return `q̂` and `k̂`, of the shapes of q and k."""
        how = self.settings.normalise
        if how == "none":
            if given.scale < 0:
                raise EigenlensError(
                    "fastmax takes the square root of the scale, which must be 0 or more, not"
                    f" {given.scale}"
                )
            root = given.scale**0.5
            return q * root, k * root
        if how == "tokens" and given.causal:
            raise EigenlensError(
                "fastmax with normalise='tokens' divides by the largest of all tokens, so it"
                " cannot be causal; choose normalise='token'"
            )
        if how == "centred":
            q, k = (x - x.mean(3, keepdim=True) for x in (q, k))
        squares = [x.square().sum(3, keepdim=True) for x in (q, k)]  # (B, H, T, 1)
        if how == "tokens":
            for i, mask in enumerate((given.queries, given.keys)):
                stands = (
                    squares[i]
                    if mask is None
                    else squares[i].masked_fill(~mask[:, None, :, None], 0.0)
                )
                squares[i] = stands.amax(2, keepdim=True)
        q, k = (x * (square + TINY).rsqrt() for x, square in zip((q, k), squares))
        return q, k * INSIDE if self.settings.p == 1 else k

    def kernel(self, x: Tensor) -> Tensor:
        """`f(x)`, elementwise."""
        return 1 + x if self.settings.p == 1 else 1 + x + 0.5 * x.square()

    def _causal(self, q: Tensor, k: Tensor, values: Tensor) -> Tensor:
        """Return `Σ_{j≤i} f(q̂_i·k̂_j) [v_j, 1]` for p = 2, with S carried from chunk to chunk.

        (B, H, E+1, ·) in and out.
        """
        T, S, size = q.shape[2], k.shape[2], self.settings.chunk
        a, b, weights = _pairs(q)
        x, y = _rows(q), _rows(k)
        total = self._sum(y[..., : S - T], values[..., : S - T], a, b) if T < S else None
        k, y, values = k[:, :, S - T :], y[..., S - T :], values[..., S - T :]
        out = []
        for at in (slice(begin, begin + size) for begin in range(0, T, size)):
            # of a key a row
            found = values[..., at] @ self.kernel(k[:, :, at] @ q[:, :, at].transpose(2, 3)).triu()
            out.append(
                found if total is None else found + (total * weights) @ _features(x[..., at], a, b)
            )
            if at.stop < T:
                more = values[..., at] @ _features(y[..., at], a, b).transpose(2, 3)
                total = more if total is None else total + more
        return torch.cat(out, 3)

    def _full(self, q: Tensor, k: Tensor, values: Tensor) -> Tensor:
        """The same over all keys. If there are few keys, their scores are cheaper than features."""
        size = self.settings.chunk
        if k.shape[2] <= size:
            return values @ self.kernel(k @ q.transpose(2, 3))
        a, b, weights = _pairs(q)
        total = self._sum(_rows(k), values, a, b) * weights
        return torch.cat([total @ _features(x, a, b) for x in _rows(q).split(size, 3)], 3)

    def _sum(self, y: Tensor, values: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return `Sᵀ = Σ_j [v_j, 1] φ(k_j)ᵀ` (B, H, E+1, F), computed chunk by chunk."""
        size = self.settings.chunk
        total = values.new_zeros(*values.shape[:3], len(a))
        for part, some in zip(y.split(size, 3), values.split(size, 3)):
            total = total + some @ _features(part, a, b).transpose(2, 3)
        return total

    def cost(self, n: int, d: int) -> int:
        """Sums and reads of `n F (d+1)` each, for values of width d.

        Within chunks of c tokens `n c (2d+2)`.

        Without a causal mask there are no products within chunks; the figure is that of the slower,
        causal form.
        """
        c = min(self.settings.chunk, n)
        return 2 * n * math.comb(d + self.settings.p, self.settings.p) * (d + 1) + n * c * (
            2 * d + 2
        )


def _rows(x: Tensor) -> Tensor:
    """Return `y = [x̂, 1]`, one feature per row, (B, H, D+1, T): rows are gathered faster."""
    return with_ones(x).transpose(2, 3).contiguous()


def _pairs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pairs a ≤ b of the D+1 entries of y, and the weight of their product in f.

    ½ for a square, ½ + ½ for 1·1.
    """
    D = x.shape[3]
    a, b = torch.triu_indices(D + 1, D + 1, device=x.device)
    return a, b, 1 - 0.5 * ((a == b) & (a < D)).to(x.dtype)


def _features(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return `φ = y_a y_b` of all pairs: (B, H, D+1, T) → (B, H, F, T)."""
    return y.index_select(2, a) * y.index_select(2, b)
