"""Inputs of loaded models, as every paper reads them: the first of a data set, in the order of a
seed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.inputs import Request, prepare
from ..models.load import Model


def batches_of(
    model: Model, data: str, length: int | None, number: int, seed: int, size: int = 8
) -> list[dict[str, Any]]:
    """Batches of `size` inputs, at least 3 inputs in all: what the model is called with, by
    keyword.
    """
    with tempfile.TemporaryDirectory(prefix="eigenlens-data-") as scratch:
        inputs = prepare(model, Request((data,), length, max(number, 3), 0.2, seed), Path(scratch))
        return [dict(batch) for group in inputs.groups for _, batch in inputs.batches(group, size)]


def token_ids(model: Model, text: str, length: int, number: int, seed: int) -> Tensor:
    """Windows of a text as a model reads it, without padding: (number, length)."""
    return torch.cat(
        [batch["input_ids"] for batch in batches_of(model, text, length, number, seed, 64)]
    )[:number]
