"""What an error of a head's output does to the task: gradients with respect to the outputs.

For a language model the gradient is that of the summed loss of the next tokens. Any other model is
judged by how far its output turns, `1 − cos ≈ ½‖δe‖²` of the unit embedding e; with random
directions z the mean of `(zᵀ δe)²` is `‖δe‖²`, so the gradients of `z·e` take the loss's place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention.attend_by_forms import full_attention
from ..captures import AttentionCall, Site, replace_attention
from ..data.inputs import Batch
from ..models.forward import Prefilled, prefill_of
from ..models.load import Model
from .sparse_plan import plain_form
from .tasks import Embeddings, Perplexity, Task, task_of

DIRECTIONS = 4
"""Random directions of an embedding."""
CHUNK = 1024
"""Tokens whose logits are made at once."""


@dataclass(frozen=True)
class TaskGradients:
    """Gradients `(B, H, T, E)` of the task with respect to the heads' outputs, by site.

    One set for a language model, `DIRECTIONS` sets for any other. `of_tokens` says whether every
    token has a loss of its own, as in a language model, or the input has one embedding.
    """

    sets: list[dict[Site, Tensor]]
    of_tokens: bool

    def effects(self, site: Site, change: Tensor) -> Tensor:
        """What a change `(B, H, T, E)` of the outputs does to the task, `(sets, B, H, T or 1)`.

        The effects on the losses of tokens have any sign; those on one embedding add up.
        """
        found = torch.stack([(change * grads[site].to(change)).sum(3) for grads in self.sets])
        return (found if self.of_tokens else found.sum(3, keepdim=True)).double()


def task_gradients(model: Model, batch: Batch, seed: int = 0) -> TaskGradients:
    """The gradients of the task on a batch.

    Only self-attention that a plan could serve is in it. Parameters get no gradients.
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
            output = prefill_of(model)(batch)
            task = task_of(model, output)
            losses = _losses(task, batch, output, seed)
            found = []
            for i, loss in enumerate(losses):
                grads = torch.autograd.grad(
                    loss, list(leaves.values()), retain_graph=i + 1 < len(losses), allow_unused=True
                )
                found.append({s: g for s, g in zip(leaves, grads) if g is not None})
    finally:
        for p, flag in wanted.items():
            p.requires_grad_(flag)
    return TaskGradients(found, isinstance(task, Perplexity))


def _losses(task: Task, batch: Batch, output: Any, seed: int) -> list[Tensor]:
    if isinstance(task, Perplexity):
        labels = F.pad(task.labels(batch), (0, 1), value=-100)  # nothing follows the last token
        if isinstance(output, Prefilled):
            return [_by_parts(output, labels)]
        return [_summed(output.logits, labels)]
    if isinstance(task, Embeddings):
        found = task.observe(batch, output)  # (B, E), of length 1
    else:
        found = output.logits.float().softmax(-1).flatten(1)
    draws = torch.Generator().manual_seed(seed)
    directions = torch.randn(DIRECTIONS, *found.shape, generator=draws).to(found)
    return [(found * z).sum() for z in directions]


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    """The summed loss of the next tokens; logits `(B, t, V)`, labels `(B, t)`."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten().to(logits.device), reduction="sum"
    )


def _by_parts(output: Prefilled, labels: Tensor) -> Tensor:
    """A number with the gradient of the summed loss, without the logits of all tokens at once.

    The loss of every part gives its gradient with respect to the hidden states h; `Σ h · ∂loss/∂h`
    has the same gradient with respect to all that made them.
    """
    hidden = output.hidden[0]  # (B, T, E)
    leaf = hidden.detach().requires_grad_()
    apart = replace(output, hidden=type(output.hidden)(last_hidden_state=leaf))
    for logits, some in zip(apart.logits(CHUNK), labels.split(CHUNK, 1)):
        _summed(logits, some).backward()
    assert leaf.grad is not None
    return (hidden * leaf.grad).sum()
