"""What every mechanism is: a matrix that weighs the values, and a form that does not need it.

    out = A(Q, K) V

`pattern` is A, in a few lines that follow the formula; `fast` computes the same output as cheaply
as it can. Everything that all calls share (shapes, shared key-value heads, masks that a mechanism
does not support) is handled here, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms
from .masks import excluded


@dataclass(frozen=True)
class Shape:
    """The shape of the layer that a mechanism works in.

    Only mechanisms with weights of their own need more than the number of heads.

    `head_width` is D of a query and a key, `width` C of the stream, `length` the most tokens,
    `value_width` E of a value if it is not D.
    """

    heads: int = 1
    head_width: int | None = None
    width: int | None = None
    length: int | None = None
    value_width: int | None = None

    def need(self, name: str, field: str) -> int:
        """Return a field, or raise an error that says which mechanism needs it."""
        value = getattr(self, field)
        if value is None:
            raise EigenlensError(f"{name} has weights of its own and needs {field} in its shape")
        return int(value)


@dataclass(frozen=True)
class Settings:
    """The settings of a mechanism that has none."""


class Mechanism(nn.Module):
    """Attention `q (B,H,T,D), k (B,G,S,D), v (B,G,S,E) → (B,H,T,E)`; H is a multiple of G.

    A mechanism defines `Settings` (a frozen dataclass), `pattern`, `fast` and `cost`, and says what
    it supports:

    `directions`: whether it runs under a causal mask, without one, or both; `takes_pairs`: whether
    it supports masks other than causality and padding (windows, biases of positions);
    `own_weights`: whether it has parameters, so that it must be trained and cannot be put into a
    model without them; `reads_stream`: whether it needs the stream x besides q, k and v; `linear`:
    whether its cost grows with the length, not with its square.
    """

    Settings: ClassVar[type] = Settings
    name: ClassVar[str] = ""
    letter: ClassVar[str | None] = None
    directions: ClassVar[tuple[str, ...]] = ("causal", "both ways")
    takes_pairs: ClassVar[bool] = False
    own_weights: ClassVar[bool] = False
    reads_stream: ClassVar[bool] = False
    linear: ClassVar[bool] = False

    def __init__(self, settings: Any = None, shape: Shape | None = None) -> None:
        super().__init__()
        self.settings = self.Settings() if settings is None else settings
        self.shape = Shape() if shape is None else shape

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        keys: Tensor | None = None,
        queries: Tensor | None = None,
        pairs: Tensor | None = None,
        scale: float | None = None,
        x: Tensor | None = None,
    ) -> Tensor:
        """Return the output (B, H, T, E) of the fast form; for the terms see `CallTerms`."""
        terms = self.checked(q, k, v, causal, keys, queries, pairs, scale, x)
        # nothing asks, or nothing is there to be looked at
        if 0 in (q.shape[0], q.shape[2], k.shape[2]):
            return v.new_zeros(*q.shape[:3], v.shape[3])
        return self.fast(*terms)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        keys: Tensor | None = None,
        queries: Tensor | None = None,
        pairs: Tensor | None = None,
        scale: float | None = None,
        x: Tensor | None = None,
    ) -> Tensor:
        """Return the same output by the dense form."""
        return self.dense(*self.checked(q, k, v, causal, keys, queries, pairs, scale, x))

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        causal: bool = False,
        keys: Tensor | None = None,
        queries: Tensor | None = None,
        pairs: Tensor | None = None,
        scale: float | None = None,
        x: Tensor | None = None,
    ) -> Tensor:
        """Return A (B, H, T, S), which weighs the values of this call."""
        q, k, _, given = self.checked(q, k, k, causal, keys, queries, pairs, scale, x)
        return self.pattern(q, k, given)

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        """The dense reference: A (B, H, T, S) for k (B, H, S, D).

        Rows of queries that see no key are zero.
        """
        raise NotImplementedError

    def dense(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        """Return `A V`; a mechanism whose output is more than that overrides this."""
        return self.pattern(q, k, given) @ v

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        """Return the same as `dense`, faster or in less memory."""
        raise NotImplementedError

    def cost(self, n: int, d: int) -> int:
        """Return the multiply-adds of one head for n tokens and heads of width d."""
        raise NotImplementedError

    def checked(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        keys: Tensor | None,
        queries: Tensor | None,
        pairs: Tensor | None,
        scale: float | None,
        x: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, CallTerms]:
        """Return the tensors of a call, one key-value head per head, and its terms.

        Or raises an error that says why the mechanism cannot take the call.
        """
        if not q.ndim == k.ndim == v.ndim == 4 or k.shape[1] == 0:
            raise EigenlensError(
                "q, k and v must have four axes (B, H, T, D), not"
                f" {[tuple(t.shape) for t in (q, k, v)]}"
            )
        (B, H, T, D), (_, G, S, _) = q.shape, k.shape
        if k.shape[0] != B or k.shape[3] != D or v.shape[:3] != k.shape[:3] or H % G:
            raise EigenlensError(
                f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit together"
            )
        if self.own_weights and self.shape.heads != H:
            raise EigenlensError(
                f"this {self.name} was made for {self.shape.heads} heads, but the queries have {H}"
            )
        if causal and "causal" not in self.directions:
            raise EigenlensError(
                f"{self.name} lets every token see every other, so it cannot be causal"
            )
        if not causal and "both ways" not in self.directions:
            raise EigenlensError(
                f"{self.name} is a recurrence over tokens, so it must be causal; call it with"
                " causal=True"
            )
        if pairs is not None and not self.takes_pairs:
            raise EigenlensError(
                f"{self.name} supports causality and padding, but no other mask or bias of pairs"
            )
        if causal and T > S:
            raise EigenlensError(
                f"a causal call has {T} queries for {S} tokens; it needs at most as many queries"
                " as tokens"
            )
        if self.reads_stream and (
            x is None or x.ndim != 3 or len(x) != B or x.shape[1] not in (T, S)
        ):
            message = "none" if x is None else f"one of shape {tuple(x.shape)}"
            raise EigenlensError(
                f"{self.name} reads the stream: give x (B, T, C) of {B} × {T} tokens, not {message}"
            )
        if self.reads_stream and x is not None and self.shape.width not in (None, x.shape[2]):
            raise EigenlensError(
                f"this {self.name} was made for a stream of width {self.shape.width}, not"
                f" {x.shape[2]}"
            )
        for name, mask, shape in (("keys", keys, (B, S)), ("queries", queries, (B, T))):
            if mask is not None and (mask.dtype != torch.bool or mask.shape != shape):
                raise EigenlensError(
                    f"{name} must be a boolean mask of shape {shape}, not {mask.dtype} of"
                    f" {tuple(mask.shape)}"
                )
        if pairs is not None:
            pairs = _of_pairs(pairs, (B, H, T, S))
        if G != H:
            k, v = (t.repeat_interleave(H // G, 1) for t in (k, v))
        if queries is None and T == S:
            queries = keys  # tokens that attend to themselves: padding is the same on both sides
        return (
            q,
            k,
            v,
            CallTerms(D**-0.5 if scale is None else scale, causal, keys, queries, pairs, x),
        )


def _of_pairs(pairs: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a mask or bias that broadcasts to (B, H, T, S), with −∞ where it excludes a pair."""
    if pairs.ndim < 4:
        pairs = pairs[(None,) * (4 - pairs.ndim)]
    fits = pairs.ndim == 4 and all(size in (1, whole) for size, whole in zip(pairs.shape, shape))
    if not fits or not (pairs.dtype == torch.bool or pairs.is_floating_point()):
        raise EigenlensError(
            f"pairs must be a mask or bias that broadcasts to {shape}, not {pairs.dtype} of shape"
            f" {tuple(pairs.shape)}"
        )
    return pairs if pairs.dtype == torch.bool else pairs.masked_fill(excluded(pairs), -torch.inf)
