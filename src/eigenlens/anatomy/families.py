"""How the blocks of each family are read: one short function per layout.

A reader looks at a module's parts, not at its class, so that families that are built alike are read
alike. Code that uses such a block checks it against the module's own output (`anatomy/check.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from .blocks import Block
from .decoder_families import gpt2, lab, parallel, pre_norm, sandwich
from .encoder_decoder_families import bart, t5
from .encoder_families import albert, bert, distilbert

Reader = Callable[[Any, str], Block | None]


def read(module: nn.Module, path: str) -> Block | None:
    """Return the block that a module is, or None."""
    for reader in READERS:
        block = reader(module, path)
        if block is not None:
            return block
    return None


READERS: tuple[Reader, ...] = (
    bert,
    albert,
    distilbert,
    gpt2,
    pre_norm,
    sandwich,
    parallel,
    t5,
    bart,
    lab,
)


FINAL = (
    "norm",
    "ln_f",
    "final_norm",
    "final_layer_norm",
    "final_layernorm",
    "layer_norm",
    "layernorm",
)


def final_norm(model: nn.Module, blocks: Sequence[Block]) -> nn.Module | None:
    """Return the norm after the last block: beside the list of blocks, or beside its module."""
    parts = blocks[0].path.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    if blocks[0].stages and blocks[0].stages[-1].after is not None:
        return None  # post-norm: a norm beside the list belongs to the embeddings
    for depth in range(max(first - 1, 0), -1, -1):
        holder: Any = model.get_submodule(".".join(parts[:depth]))
        for name in FINAL:
            if isinstance(found := getattr(holder, name, None), nn.Module):
                return found
    return None
