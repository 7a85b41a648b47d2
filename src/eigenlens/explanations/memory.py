"""The memory that an explanation takes, computed before it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..display import numbered
from ..errors import EigenlensError
from ..models.load import Model
from ..shell import option

PATTERNS = 2
"""Matrices kept per attention: its pattern, and the gradient of the score to it."""


def memory_of(model: Model, batch: Mapping[str, Any]) -> float:
    """Bytes of all patterns of the source tokens and of their gradients: `2·B·L·H·T²` numbers.

    L and H are from the model's config; a module without a config counts as 0.

    >>> # 30 layers × 9 heads, 100 tokens
    >>> memory_of(model, encode(model, text))
    21600000.0
    """
    return (
        PATTERNS
        * len(next(iter(batch.values())))
        * _heads(model)
        * tokens_of(model, batch) ** 2
        * _bytes(model)
    )


def check_memory(model: Model, batch: Mapping[str, Any], gigabytes: float) -> None:
    """Raise an error if an explanation would take more than `gigabytes` (10⁹ bytes)."""
    if (needed := memory_of(model, batch)) > gigabytes * 1e9:
        raise EigenlensError(
            f"an input of {numbered(tokens_of(model, batch), 'token')} takes {needed / 1e9:.3g} GB"
            f" for the patterns of {numbered(_heads(model), 'head')} of {model.name} and their"
            f" gradients, and the limit is {gigabytes:g} GB; give a shorter input, or raise"
            f" {option('max_memory', None)}"
        )


def tokens_of(model: Model, batch: Mapping[str, Any]) -> int:
    """The number T of source tokens: tokens of a text, patches of a picture, frames of sound."""
    if (ids := batch.get("input_ids")) is not None:
        return int(ids.shape[1])
    if (pixels := batch.get("pixel_values")) is not None:
        patch = getattr(model.config, "patch_size", 16)
        sides = patch if isinstance(patch, tuple | list) else (patch, patch)
        return math.prod(size // side for size, side in zip(pixels.shape[-2:], sides))
    if (sound := batch.get("input_features")) is not None:
        return int(getattr(model.config, "max_source_positions", sound.shape[-1]))
    return 0


def _heads(model: Model) -> int:
    """The number of heads in all layers, L·H."""
    layers, heads = (
        getattr(model.config, name, 0) for name in ("num_hidden_layers", "num_attention_heads")
    )
    return layers * heads if isinstance(layers, int) and isinstance(heads, int) else 0


def _bytes(model: Model) -> int:
    kind = next(
        (x.dtype for x in model.module.parameters() if x.is_floating_point()), torch.float32
    )
    return kind.itemsize
