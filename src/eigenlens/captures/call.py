"""One attention call, in the form that every backend of capture gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..attention.masks import added_numbers, adds_numbers
from ..attention.precision import at_least_float32
from .masks import MaskShape, MaskShapes, allowed_pairs, causal_pairs, find_shape
from .sites import Site


@dataclass(eq=False)
class AttentionCall:
    """Queries, keys and values of one attention call, with everything that shapes its scores.

    Shapes: `q (B,H,T,D)`, `k (B,G,S,D)`, `v (B,G,S,E)` with `G` key-value heads, `H` a multiple of
    `G` (grouped queries). The scores are `softcap(scale · q kᵀ) + bias`, the pattern their softmax
    over the allowed keys, with the sink logits (one per head, without a key) in the denominator if
    the model has them. Tensors of a model in half precision are stored in float32, because their
    products and sums exceed the range and precision of 16 bits.
    """

    site: Site
    kind: Literal["self", "cross"]
    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    mask: Tensor | None = None  # bool (True: may attend) or additive, broadcastable to (B, H, T, S)
    causal: bool = False  # query i sees keys j ≤ i; given instead of a mask
    bias: Tensor | None = None  # position bias, broadcastable to (B, H, T, S)
    softcap: float | None = None
    sinks: Tensor | None = None  # (H,)
    query_valid: Tensor | None = None  # (B, T) bool: False marks padding
    # shared by the calls of a pass
    shapes: MaskShapes = field(default_factory=MaskShapes, repr=False)

    def __post_init__(self) -> None:
        self.q, self.k, self.v = (at_least_float32(x) for x in (self.q, self.k, self.v))

    @property
    def layer(self) -> int:
        """The number of the layer in its stack, from 0."""
        return self.site.layer

    @property
    def heads(self) -> int:
        """The number of query heads, H."""
        return self.q.shape[1]

    @property
    def group(self) -> int:
        """The number of query heads that share a key-value head."""
        return self.heads // self.k.shape[1]

    @property
    def linear(self) -> bool:
        """Whether the scores are the plain products `scale · q kᵀ`, without cap or bias."""
        return self.softcap is None and self.bias is None and not self._additive

    def of_heads(self, heads: Sequence[int] | Tensor) -> AttentionCall:
        """The same call with only the query heads `(h,)`: q, k, v become `(B, h, …)`.

        Each head comes with the keys and values it reads.
        """
        index = torch.as_tensor(heads, dtype=torch.long, device=self.q.device)

        def chosen(x: Tensor | None) -> Tensor | None:
            return x[..., index, :, :] if x is not None and x.ndim >= 3 and x.shape[-3] > 1 else x

        return replace(
            self,
            q=self.q[:, index],
            k=self.k[:, index // self.group],
            v=self.v[:, index // self.group],
            mask=(mask := chosen(self.mask)),
            bias=chosen(self.bias),
            sinks=None if self.sinks is None else self.sinks[index],
            # found by the identity of the mask
            shapes=self.shapes if mask is self.mask else MaskShapes(),
        )

    def of_inputs(self, chosen: slice | Tensor) -> AttentionCall:
        """The same call with only some of its inputs: q, k, v become `(b, …)`."""

        def part(x: Tensor | None) -> Tensor | None:
            return x[chosen] if x is not None and x.ndim == 4 and x.shape[0] > 1 else x

        q, k, v = (x[chosen] for x in (self.q, self.k, self.v))
        rows = None if self.query_valid is None else self.query_valid[chosen]
        parts = {
            "mask": part(self.mask),
            "bias": part(self.bias),
            "query_valid": rows,
            "shapes": MaskShapes(),
        }
        return replace(self, q=q, k=k, v=v, **parts)  # type: ignore[arg-type]

    @cached_property
    def _additive(self) -> bool:
        return self.mask is not None and adds_numbers(self.mask)

    @cached_property
    def mask_shape(self) -> MaskShape:
        """The form of the mask, computed once for all calls of a pass that share the mask."""
        if self.mask is None:
            return self._find_mask_shape()
        key = (self.mask,) if self.query_valid is None else (self.mask, self.query_valid)
        terms = (self.q.shape[2], self.k.shape[2], self.causal)
        return self.shapes.get(terms, *key) or self.shapes.put(self._find_mask_shape(), terms, *key)

    def _find_mask_shape(self) -> MaskShape:
        (B, _, T, _), S = self.q.shape, self.k.shape[2]
        causal = causal_pairs(T, S, self.q.device) if self.causal and T > 1 else None
        return find_shape(self.allowed(), causal, self.query_valid, (B, T, S))

    def allowed(self) -> Tensor | None:
        """The pairs that mask and causality allow, `(B or 1, H or 1, T, S)` bool.

        None if there is no mask.
        """
        T, S = self.q.shape[2], self.k.shape[2]
        return None if self.mask is None else allowed_pairs(self.mask, T, S, self.causal)

    def valid(self) -> Tensor:
        """The pairs that count, `(B or 1, H or 1, T, S)` bool.

        The mask allows them, and the query is not padding.
        """
        shape = self.mask_shape
        if shape.valid is not None:
            return shape.valid
        if shape.form == "causal":
            return causal_pairs(self.q.shape[2], self.k.shape[2], self.q.device)
        return torch.ones(
            1, 1, self.q.shape[2], self.k.shape[2], dtype=torch.bool, device=self.q.device
        )

    @cached_property
    def scaled_q(self) -> Tensor:
        """The scaled queries `scale · q`, (B, H, T, D)."""
        return self.q * self.scale

    @property
    def keys(self) -> Tensor:
        """The keys each query head reads, `(B, H, S, D)`."""
        return self.k.repeat_interleave(self.group, 1) if self.group > 1 else self.k

    @property
    def values(self) -> Tensor:
        """The values each query head reads, `(B, H, S, E)`."""
        return self.v.repeat_interleave(self.group, 1) if self.group > 1 else self.v

    @cached_property
    def head_queries(self) -> Tensor:
        """The scaled queries by head, contiguous, with padding rows at zero, `(H, B, T, D)`."""
        rows = self.mask_shape.queries if self.mask_shape.form == "rectangle" else self.query_valid
        q = torch.empty_like(self.q.transpose(0, 1), memory_format=torch.contiguous_format)
        torch.mul(self.q.transpose(0, 1), self.scale, out=q)
        return q if rows is None else q.mul_(rows[None, :, :, None])

    @cached_property
    def head_keys(self) -> Tensor:
        """The keys by key-value head, contiguous, `(G, B, S, D)`."""
        return self.k.transpose(0, 1).contiguous()

    @cached_property
    def keys_by_head(self) -> Tensor:
        """The keys that each query head reads, contiguous, `(H, B, S, D)`."""
        return self.head_keys.repeat_interleave(self.group, 0) if self.group > 1 else self.head_keys

    @cached_property
    def query_gram(self) -> Tensor:
        """`Σ_i q_i q_iᵀ` over the scaled valid queries of each input, `(H, B, D, D)`."""
        return self.head_queries.transpose(2, 3) @ self.head_queries

    @cached_property
    def query_sum(self) -> Tensor:
        """`Σ_i q_i` over the scaled valid queries of each input, `(H, B, D)`."""
        return self.head_queries.sum(2)

    def raw_scores(self) -> Tensor:
        """The scores of all pairs, masked ones included, `(B, H, T, S)`."""
        return self.shaped(self.scaled_q @ self.keys.transpose(2, 3))

    def shaped(self, products: Tensor) -> Tensor:
        """Apply cap, position bias and additive mask to products `scale · q kᵀ (B, H, T, S)`.

        The products may be exact or estimated.
        """
        scores = products
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.bias is not None:
            scores = scores + self.bias
        if self._additive:
            assert self.mask is not None
            scores = scores + added_numbers(self.mask)
        return scores

    def scores(self, fill: float = -torch.inf) -> Tensor:
        """The scores before the softmax, `(B, H, T, S)`; pairs that do not count hold `fill`."""
        return self.masked(self.raw_scores(), fill)

    def masked(self, scores: Tensor, fill: float = -torch.inf) -> Tensor:
        """`scores (B, H, T, S)` with `fill` in the pairs that do not count."""
        return scores if self.mask_shape.form == "full" else scores.masked_fill(~self.valid(), fill)

    def pattern(self) -> Tensor:
        """The attention probabilities, `(B, H, T, S)`.

        Rows sum to 1 (less with sink logits); padding rows are zero.
        """
        return self.pattern_of(self.raw_scores())

    def pattern_of(self, scores: Tensor) -> Tensor:
        """The probabilities that other scores `(B, H, T, S)` would give in this call."""
        scores = self.masked(scores)
        if self.sinks is not None:
            sink = self.sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], dim=-1)
        pattern = torch.softmax(
            scores, dim=-1, dtype=torch.float32 if scores.dtype != torch.float64 else None
        )
        if self.sinks is not None:
            pattern = pattern[..., :-1]
        # a row without any key has no distribution
        return torch.nan_to_num(pattern).to(scores.dtype)
