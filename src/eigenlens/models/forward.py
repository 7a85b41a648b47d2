"""Run a loaded model on a batch."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .load import Model


@dataclass
class Prefilled:
    """A language model after its pass over a prompt: hidden states, and logits on demand.

    Logits over a vocabulary for every token would take more memory than all else.
    """

    module: Any
    backbone: Any
    inputs: dict[str, Any]
    hidden: Any
    last: Tensor
    """The logits of the next token, `(B, V)`."""

    def logits(self, size: int) -> Iterator[Tensor]:
        """The logits `(B, size, V)` of every token, a part at a time."""
        length, device = self.hidden[0].shape[1], self.hidden[0].device
        with _returning(self.backbone, self.hidden):
            for part in torch.arange(length, device=device).split(size):
                yield self.module(**self.inputs, logits_to_keep=part).logits


@contextlib.contextmanager
def _returning(backbone: Any, output: Any) -> Iterator[None]:
    """Let a backbone return what it has computed before."""
    backbone.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del backbone.forward


def prefill_of(model: Model) -> Callable[[Mapping[str, Tensor]], Any]:
    """Return the call that a user waits for: up to the first token, or to the embedding.

    For a causal language model the result is `Prefilled`, for any other the output of the model.
    """
    module: Any = model.module
    parts = model.kind == "decoder" and model.backbone is not module
    if not parts or "logits_to_keep" not in inspect.signature(module.forward).parameters:
        return forward_of(model, with_head=True)
    backbone, run = model.backbone, forward_of(model)

    def prefill(batch: Mapping[str, Tensor]) -> Prefilled:
        hidden = run(batch)
        inputs = {**batch, "use_cache": False}
        with _returning(backbone, hidden):
            last = module(**inputs, logits_to_keep=1).logits[:, -1]
        return Prefilled(module, backbone, inputs, hidden, last)

    return prefill


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
