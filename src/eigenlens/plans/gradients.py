"""What an error of a head's output does to the task: gradients with respect to the outputs.

For a language model the gradient is that of the summed loss of the next tokens. Any other model is
judged by how far its output turns, `1 − cos ≈ ½‖δe‖²` of the unit embedding e; with random
directions z the mean of `(zᵀ δe)²` is `‖δe‖²`, so the gradients of `z·e` take the loss's place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention.head_forms import full_attention
from ..captures import AttentionCall, Site, replace_attention
from ..data.inputs import Batch
from ..models.forward import forward_of
from ..models.load import Model
from .sparse_plan import plain_form
from .tasks import Embeddings, Perplexity, task_of

DIRECTIONS = 4
"""Random directions of an embedding."""
CHUNK = 1024
"""Tokens whose logits are made at once."""


def task_gradients(model: Model, batch: Batch, seed: int = 0) -> list[dict[Site, Tensor]]:
    """The gradients `(B, H, T, E)` of the task with respect to the heads' outputs, by site.

    One set for a language model, `DIRECTIONS` sets for any other. Only self-attention that a plan
    could serve is in it. Parameters get no gradients.
    """
    leaves: dict[Site, Tensor] = {}

    def attend(call: AttentionCall) -> Tensor | None:
        if (found := plain_form(call)) is None:
            return None
        causal, valid = found
        out = full_attention(call.q, call.k, call.v, causal, call.scale, valid)
        leaves[call.site] = torch.zeros_like(out, requires_grad=True)
        return out + leaves[call.site]

    wanted = {p: p.requires_grad for p in model.module.parameters()}
    try:
        for p in wanted:
            p.requires_grad_(False)
        with torch.enable_grad(), replace_attention(model.backbone, attend):
            output = forward_of(model, with_head=True)(batch)
            losses = _losses(model, batch, output, seed)
            found = []
            for i, loss in enumerate(losses):
                grads = torch.autograd.grad(
                    loss, list(leaves.values()), retain_graph=i + 1 < len(losses), allow_unused=True
                )
                found.append({s: g for s, g in zip(leaves, grads) if g is not None})
    finally:
        for p, flag in wanted.items():
            p.requires_grad_(flag)
    return found


def _losses(model: Model, batch: Batch, output: Any, seed: int) -> list[Tensor]:
    task = task_of(model, output)
    if isinstance(task, Perplexity):
        logits, labels = output.logits[:, :-1].float(), task.labels(batch)
        parts = zip(logits.split(CHUNK, 1), labels.split(CHUNK, 1))
        return [
            torch.stack(
                [F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="sum") for x, y in parts]
            ).sum()
        ]
    if isinstance(task, Embeddings):
        found = task.observe(batch, output)  # (B, E), of length 1
    else:
        found = output.logits.float().softmax(-1).flatten(1)
    draws = torch.Generator().manual_seed(seed)
    directions = torch.randn(DIRECTIONS, *found.shape, generator=draws).to(found)
    return [(found * z).sum() for z in directions]
