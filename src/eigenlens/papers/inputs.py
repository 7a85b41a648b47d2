"""Inputs of pretrained models, the same way in every paper.

They are the first ones of a data set, in the order that a seed gives.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.inputs import Request, prepare
from ..models.load import Model

CLOTHING = (
    "T-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "trainer",
    "bag",
    "boot",
)
"""The classes of the pictures of clothing, in their order."""


def make_batches(
    model: Model, data: str, length: int | None, inputs: int, seed: int, batch_size: int = 8
) -> list[dict[str, Any]]:
    """Batches of `batch_size` inputs each, as keyword arguments of the model: `model(**batch)`.

    There are never fewer than 3 inputs, which is the least that can be split.
    """
    with tempfile.TemporaryDirectory(prefix="eigenlens-data-") as scratch:
        request = Request((data,), length, max(inputs, 3), 0.2, seed)
        ready = prepare(model, request, Path(scratch))
        return [
            dict(batch) for group in ready.groups for _, batch in ready.batches(group, batch_size)
        ]


def token_ids(model: Model, text: str, length: int, inputs: int, seed: int) -> Tensor:
    """Windows of a text in the model's own tokens, without padding: (inputs, length)."""
    batches = make_batches(model, text, length, inputs, seed, 64)
    return torch.cat([batch["input_ids"] for batch in batches])[:inputs]
