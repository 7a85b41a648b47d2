"""Run a loaded model on a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .load import Model


def forward_of(model: Model, with_head: bool = False) -> Callable[[Mapping[str, Tensor]], Any]:
    """Return the call that runs the backbone on a batch, or, `with_head`, the whole model."""
    module = model.module if with_head else model.backbone
    kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)

    def inputs_of(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch as the model takes it: pictures and sound in its own precision."""
        return {name: x.to(kind) if x.is_floating_point() else x for name, x in batch.items()}

    if model.kind == "module":
        return lambda batch: module(next(iter(inputs_of(batch).values())))
    config = getattr(module, "config", None)
    fixed = {"use_cache": False} if getattr(config, "use_cache", None) is not None else {}
    return lambda batch: module(**inputs_of(batch), **fixed)
