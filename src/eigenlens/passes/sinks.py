"""Tokens on which attention that has no use may rest."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.arrays import is_array
from ..data.windows import special_tokens
from ..models.load import Model


def sinks_of(model: Model, data: Sequence[str]) -> tuple[int, int]:
    """What the tokenizer puts around a text, and the first token in any case.

    Attention that has no use rests on them.
    """
    ids = any(is_array(name) for name in data)
    if model.tokenizer is None or ids or model.kind in {"vision", "audio", "module"}:
        return 1, 0
    before, after = special_tokens(model.tokenizer)
    return max(1, len(before)), len(after)
