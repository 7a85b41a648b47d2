"""A small model learns to sort, and real text, with each normalisation.

Measured are its held-out loss and how many keys it explains away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...display import numbered
from ...lab import (
    Config,
    LearningTask,
    MaskedBytes,
    Sort,
    TrainingSettings,
    Transformer,
    documents,
    split,
    train,
)
from ...run.parts import Parts
from ...run.progress import Progress
from .keys import KeyWeights

MECHANISMS = ("softmax", "doubly-normalised", "hybrid-normalised")
TASKS = ("sort", "masked bytes")


@dataclass(frozen=True)
class DoublyNormalisedTraining:
    """A text, a small model of its masked bytes, how long it learns, and the same for sorting."""

    text: str
    characters: int
    length: int
    width: int
    layers: int
    heads: int
    steps: int
    seeds: int
    sort_seeds: int
    batch: int = 16
    sort_batch: int = 64


def training_rows(
    scale: DoublyNormalisedTraining, parts: Parts, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    """One row for every task, mechanism and seed.

    A run that was stopped goes on from its checkpoint.
    """
    tasks, makes = [], {}
    for task in TASKS:
        for number in range(scale.sort_seeds if task == "sort" else scale.seeds):
            for name in MECHANISMS:
                work = partial(_run, task, name, scale, parts, seed + number, progress)
                makes[f"training/{task.replace(' ', '-')}/{name}-{number}"] = work
                tasks.append(task)
    stage = f"training {numbered(len(makes), 'model')}"
    return [{"task": task, **run} for task, run in zip(tasks, parts.each(makes, progress, stage))]


def _run(
    task: str,
    name: str,
    scale: DoublyNormalisedTraining,
    parts: Parts,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    made, config = _sort(scale, name) if task == "sort" else _bytes(scale, name)
    torch.manual_seed(seed)
    model = Transformer(config)
    batch = scale.sort_batch if task == "sort" else scale.batch
    settings = TrainingSettings(
        scale.steps, batch=batch, measure=max(1, scale.steps // 6), seed=seed
    )
    checkpoint = parts.checkpoint(f"training/{task.replace(' ', '-')}/{name}-{seed}")
    done = train(
        model,
        made,
        settings,
        progress=progress,
        label=f"training {name} on the task {task}",
        checkpoint=checkpoint,
    )
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    below, least, u = _keys(model, made)
    return {
        "mechanism": name,
        "seed": seed,
        "steps": done.steps,
        "loss": done.loss,
        "accuracy": done.accuracy,
        "keys below 1/S": below,
        "least weight": least,
        "u": u,
        "curve": [{"step": point.step, "loss": point.loss} for point in done.curve],
    }


def _sort(scale: DoublyNormalisedTraining, name: str) -> tuple[LearningTask, Config]:
    task = Sort()
    return task, task.config(
        width=scale.width, layers=scale.layers, heads=scale.heads, mechanism=name
    )


def _bytes(scale: DoublyNormalisedTraining, name: str) -> tuple[LearningTask, Config]:
    task = MaskedBytes(*split(documents(scale.text, scale.characters)), length=scale.length)
    return task, Config(
        task.vocabulary, scale.length, scale.width, scale.layers, scale.heads, mechanism=name
    )


@torch.no_grad()
def _keys(model: Transformer, task: LearningTask) -> tuple[float, float, float | None]:
    """The share of held-out keys of all heads with a weight below 1/S, and the least weight.

    Also the mean share of softmax.
    """
    S = task.length
    batch = next(task.held_out())
    sums = KeyWeights(model.config.heads, (1 / S,))
    for A in model.patterns(batch.inputs):
        sums.add(A, torch.ones_like(A, dtype=torch.bool))
    shares = [float(m.u.mean()) for m in model.mechanisms if hasattr(m, "u")]
    return (
        float(sums.below.mean()) / sums.keys,
        float(sums.least.min()),
        sum(shares) / len(shares) if shares else None,
    )
