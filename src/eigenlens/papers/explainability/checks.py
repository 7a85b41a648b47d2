"""What must hold of relevance whatever the model.

Each row is the size of what should be zero, or the number itself.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ...captures.precision import stays_double
from ...explanations.methods import attribute
from ...explanations.observed import observe
from ...explanations.propagation import normalised, propagate
from ...explanations.steps import steps_of
from ...explanations.target import target_of
from ...models.load import Model, load
from .labelled import SENTIMENT, Labelled
from .probe import Probe


def checks(model: Model, asked: Labelled) -> list[dict[str, Any]]:
    """The checks, for a probe on some labelled texts."""
    seen = observe(model, asked.batch, target_of(model, asked.batch))
    (R,) = propagate(steps_of(seen)).values()  # (B, T, T)
    start = R - torch.eye(R.shape[-1], device=R.device)
    batched = attribute(model, asked.batch, target_of(model, asked.batch), ["relevance"])[
        "relevance"
    ]
    alone = [
        attribute(model, one.batch, target_of(model, one.batch), ["relevance"])["relevance"][0]
        for one in asked.parts(1)
    ]
    apart = max(
        float((row - batched[i, : len(row)]).abs().max() / row.max()) for i, row in enumerate(alone)
    )
    beyond = max(
        float(batched[i, len(row) :].abs().max()) if len(row) < batched.shape[1] else 0.0
        for i, row in enumerate(alone)
    )
    empty = torch.eye(5)[None].clone()
    empty[0, 2, 3] = 0.5
    bar = normalised(empty)
    return [
        {
            "check": "one layer: largest |R − (I + Ā)|",
            "value": one_layer(model, next(asked.parts(4))),
        },
        {"check": "all layers: least entry of R", "value": float(R.min())},
        {"check": "all layers: least entry of R − I", "value": float(start.min())},
        {"check": "batch against one by one: largest relative difference", "value": apart},
        {"check": "batch: largest relevance of padding", "value": beyond},
        {
            "check": "rows without mass: entries of R̄ that are no numbers",
            "value": float((~torch.isfinite(bar)).sum()),
        },
        {
            "check": "rows without mass: largest |R̄ − I| of them",
            "value": float((bar - torch.eye(5))[0, [0, 1, 3, 4]].abs().max()),
        },
    ]


def one_layer(model: Model, part: Labelled) -> float:
    """The largest |R − (I + Ā)| for the first block alone in float64.

    Ā is from eager attention and torch's gradients.
    """
    probe: Any = copy.deepcopy(model.module).double()
    backbone = probe.backbone
    backbone.encoder.layer = backbone.encoder.layer[:1]
    short = Probe(backbone, SENTIMENT, probe.pool).eval()
    short.readout.load_state_dict(probe.readout.state_dict())
    loaded = load(short, tokenizer=model.tokenizer)
    with stays_double():
        (R,) = propagate(
            steps_of(observe(loaded, part.batch, target_of(loaded, part.batch)))
        ).values()
    expected = _by_hand(backbone, short, part)
    mask = part.batch["attention_mask"].bool()
    pairs = mask[:, :, None] & mask[:, None]
    return float((R - expected)[pairs].abs().max())


def _by_hand(backbone: Any, probe: Probe, part: Labelled) -> Tensor:
    """I + Ā, (B, T, T): log-odds of two classes are the difference of their logits."""
    backbone.set_attn_implementation("eager")
    with torch.enable_grad():
        out = backbone(**part.batch, output_attentions=True)
        (A,) = out.attentions  # (B, H, T, T)
        mask = part.batch["attention_mask"][..., None].to(A.dtype)
        z = probe.readout((out.last_hidden_state * mask).sum(1) / mask.sum(1))  # (B, 2)
        (gradient,) = torch.autograd.grad((z.amax(1) - z.amin(1)).sum(), A)
    A = A.detach()
    return torch.eye(A.shape[-1], device=A.device) + (gradient * A).clamp(min=0).mean(1)
