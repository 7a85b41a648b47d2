"""Tokens that collect unused attention."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.arrays import is_array
from ..data.windows import special_tokens
from ..models.load import Model


def sinks_of(model: Model, data: Sequence[str]) -> tuple[int, int]:
    """Return how many sink tokens an input has at its start and at its end.

    They are the tokens that the tokenizer adds around a text, and always the first token. Such
    tokens collect attention that heads do not use.
    """
    ids = any(is_array(name) for name in data)
    if model.tokenizer is None or ids or model.kind in {"vision", "audio", "module"}:
        return 1, 0
    before, after = special_tokens(model.tokenizer)
    return max(1, len(before)), len(after)
