"""Small models of heads of a given rank, trained to copy the nearest token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...display import numbered
from ...lab import NearestNeighbour, TrainingSettings, Transformer, train
from ...run.parts import Parts
from ...run.progress import Progress

if TYPE_CHECKING:
    from . import Scale


def trained_row(
    scale: Scale, layers: int, rank: int, seed: int, parts: Parts, progress: Progress
) -> dict[str, Any]:
    """Attention with rH = d and values of full width, trained; the error is 1 for the answer 0."""
    task = NearestNeighbour(scale.points, scale.d)
    torch.manual_seed(seed)
    heads = scale.d // rank
    shape = {
        "width": 2 * scale.d,
        "heads": heads,
        "rank": rank,
        "value_width": scale.d,
        "mlp": False,
        "norm": False,
    }
    model = Transformer(task.config(layers=layers, **shape))
    steps = scale.steps if layers == 1 else scale.deep_steps
    settings = TrainingSettings(steps, scale.batch, scale.rate, decay=0.0, measure=steps, seed=seed)
    label = f"training {numbered(layers, 'layer')} with heads of rank {rank}"
    checkpoint = parts.checkpoint(f"training/{layers}-{rank}-{seed}")
    done = train(model, task, settings, progress=progress, label=label, checkpoint=checkpoint)
    return {
        "layers": layers,
        "rank": rank,
        "heads": heads,
        "seed": seed,
        "error": done.loss * scale.d,
    }
