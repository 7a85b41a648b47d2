"""Cut inputs into shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.inputs import Inputs
from ..run.shards import Shard, cut_at_documents


@dataclass(frozen=True)
class ShardBatches:
    """The inputs of a shard: its batches, and the position of its first input among all inputs."""

    first: int
    batches: tuple[Mapping[str, Tensor], ...]


def to_device(batch: Mapping[str, Any], device: torch.device | str) -> dict[str, Any]:
    """Move a batch to a device; entries that are not tensors stay as they are."""
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()}


def all_of(inputs: Inputs) -> np.ndarray:
    """Return the indices of all inputs (N,): first those to fit on, then those held out."""
    return np.concatenate([np.flatnonzero(inputs.buckets == group) for group in inputs.groups])


def make_shards(
    inputs: Inputs, chosen: np.ndarray, size: int, batch: int, first: int = 0
) -> list[Shard]:
    """Cut the inputs `chosen` (N,) into shards of about `size` inputs, between documents.

    Each shard runs in batches of `batch`.

    A shard is numbered by the position of its first input; the first shard has the number `first`.
    """
    return _shards(inputs, chosen, cut_at_documents(inputs.documents[chosen], size), batch, first)


def singles(inputs: Inputs, chosen: np.ndarray) -> list[Shard]:
    """Make one shard for each of the inputs `chosen` (N,)."""
    return _shards(inputs, chosen, [(i, i + 1) for i in range(len(chosen))], 1)


def _shards(
    inputs: Inputs, chosen: np.ndarray, runs: list[tuple[int, int]], batch: int, first: int = 0
) -> list[Shard]:
    shards = []
    for a, b in runs:
        content = partial(_content, inputs, first + a, chosen[a:b], batch)
        shards.append(Shard(first + a, b - a, inputs.document_names(chosen[a:b]), content))
    return shards


def _content(inputs: Inputs, first: int, chosen: np.ndarray, batch: int) -> ShardBatches:
    batches = (inputs.make(chosen[i : i + batch]) for i in range(0, len(chosen), batch))
    return ShardBatches(first, tuple(to_device(made, "cpu") for made in batches))
