"""The shape of a call's mask: full, causal, padded, or anything else."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..attention.masks import excluded


@dataclass(frozen=True)
class MaskShape:
    """What the mask of a call allows, so that statistics can choose the cheapest exact form.

    `form` is one of
      full       every query sees every key
      rectangle  padding: each input has its own valid queries, which see all its valid keys
      causal     query i sees keys j ≤ i, in every input
      fixed      another pattern, the same in every input, no padding (such as a sliding window)
      varied     anything else (causal with padding, packed sequences)

    Padding is a query that is not a token, or a key that the mask hides from every query. It
    depends on the input, so a mask with padding is never `fixed`, even if all inputs of a batch
    happen to share it or there is only one.
    """

    form: Literal["full", "rectangle", "causal", "fixed", "varied"]
    valid: Tensor | None  # (B or 1, H or 1, T, S) bool; None where form is full or causal
    # (B, T) and (B, S) bool, where form is rectangle, or varied and causal but for padding
    queries: Tensor | None = None
    keys: Tensor | None = None


class MaskShapes:
    """The shapes of the masks of one forward pass, computed once for all calls that share a mask.

    A mask is recognised by its identity, as long as it lives and is not written to: a later mask
    may get the address of one that is gone. `terms` is everything else that the shape depends on.
    """

    def __init__(self) -> None:
        self._found: dict[
            tuple[Any, ...], tuple[list[tuple[weakref.ref[Tensor], int]], MaskShape]
        ] = {}

    def get(self, terms: tuple[Any, ...], *tensors: Tensor) -> MaskShape | None:
        refs, shape = self._found.get((terms, *map(id, tensors)), ([], None))
        same = all(
            ref() is x and version == _version(x) for (ref, version), x in zip(refs, tensors)
        )
        return shape if same else None

    def put(self, shape: MaskShape, terms: tuple[Any, ...], *tensors: Tensor) -> MaskShape:
        key, found = (terms, *map(id, tensors)), self._found

        def gone(_: Any) -> None:
            found.pop(key, None)

        found[key] = ([(weakref.ref(x, gone), _version(x)) for x in tensors], shape)
        return shape

    def __reduce__(self) -> tuple[type[MaskShapes], tuple[()]]:
        return MaskShapes, ()  # a copy has masks of its own


def _version(x: Tensor) -> int:
    """Return how often a tensor was written to; tensors of inference mode do not count it."""
    return 0 if x.is_inference() else x._version


def causal_pairs(T: int, S: int, device: torch.device) -> Tensor:
    """Return the causal pairs, (1, 1, T, S) bool: query i sees keys j ≤ i."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril()[None, None]


def allowed_pairs(mask: Tensor, T: int, S: int, causal: bool = False) -> Tensor:
    """Return the pairs that a mask, and causality if it holds, allow: (B or 1, H or 1, T, S)."""
    allowed = ~excluded(mask)
    while allowed.ndim < 4:
        allowed = allowed[None]
    allowed = allowed.expand(allowed.shape[0], allowed.shape[1], T, S)
    return allowed & causal_pairs(T, S, mask.device) if causal and T > 1 else allowed


def find_shape(
    allowed: Tensor | None,
    causal: Tensor | None,
    queries: Tensor | None,
    size: tuple[int, int, int],
) -> MaskShape:
    """Return the shape of the mask of a call of `size` (B, T, S).

    `allowed` are the pairs that the mask allows, causality included, or None if there is no mask;
    `causal` are the pairs of `causal_pairs` if the call is causal, else None; `queries` (B, T) is
    False at padding.
    """
    B, T, S = size
    padded = queries is not None and not bool(queries.all())
    if allowed is None and not padded:
        if causal is None:
            return MaskShape("full", None)
        return MaskShape("causal", None) if T == S else MaskShape("fixed", causal)
    valid = allowed if allowed is not None else causal
    if valid is None:
        assert queries is not None
        valid = torch.ones(1, 1, T, S, dtype=torch.bool, device=queries.device)
    # a key that no query of its input sees is padding, too
    padded = padded or (allowed is not None and not bool(allowed.any(2).any(1).all()))
    if valid.shape[1] > 1 and bool((valid == valid[:, :1]).all()):
        valid = valid[:, :1]
    if valid.shape[0] > 1 and (valid.stride(0) == 0 or bool((valid == valid[:1]).all())):
        valid = valid[:1]
    if queries is not None and padded:
        valid = valid & queries[:, None, :, None]
    if bool(valid.all()):
        return MaskShape("full", None)
    if valid.shape[:2] == (1, 1) and not padded:
        same = T == S and torch.equal(valid, causal_pairs(T, S, valid.device))
        return MaskShape("causal", None) if same else MaskShape("fixed", valid)
    if valid.shape[1] == 1:
        rows, keys = valid.any(3)[:, 0], valid.any(2)[:, 0]  # (B, T), (B, S)
        if torch.equal(valid[:, 0], rows[:, :, None] & keys[:, None, :]):
            return MaskShape("rectangle", valid, rows.expand(B, T), keys.expand(B, S))
        both = rows[:, :, None] & keys[:, None, :]
        if T == S and torch.equal(valid[:, 0], both & causal_pairs(T, S, valid.device)[0]):
            return MaskShape("varied", valid, rows.expand(B, T), keys.expand(B, S))
    return MaskShape("varied", valid)
