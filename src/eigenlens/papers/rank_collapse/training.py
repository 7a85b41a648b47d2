"""What paths of each length are worth to a model that was trained.

Attention with skips and nothing else learns a task. Its output is then `Σ_k X_k + bias` over path
lengths k, and each X_k is read out by the model's own read-out:

    frozen   X_k with the patterns of the whole model: the terms add up to the model
    rerun    the mean of random paths of length k, each a network that attends to its own stream

They are read out in four ways:

    alone      X_k
    up to      Σ_{j≤k} X_j + bias
    residual   X_k − 1x̄ᵀ, without what all tokens share
    single     rerun paths one by one: the mean of their accuracies
"""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...anatomy import freeze
from ...collapses.paths import decompose_paths
from ...collapses.sampling import draw_paths, rerun_paths
from ...display import numbered
from ...lab import ConvexHull, Memorise, Sort, TaskBatch, Toy, TrainingSettings, Transformer, train
from ...names import unknown_name
from ...run.parts import Parts
from ...run.progress import Progress, silent
from .circle import CircleTrial, circles

TASKS: dict[str, Callable[..., Toy]] = {
    "sort": Sort,
    "convex hull": ConvexHull,
    "memorise": Memorise,
}


@dataclass(frozen=True)
class Trial:
    """One task: its `data` (arguments of the task), the model's size, its training.

    Of each length so many `paths` are rerun, on the first `batches` of 100 test sequences.
    """

    task: str
    data: dict[str, int]
    layers: int
    heads: int
    width: int
    settings: TrainingSettings
    paths: int
    batches: int = 5


@dataclass(frozen=True)
class RankCollapseTraining:
    """All tasks, and the circles of `circle.py`, with `seeds` seeds each."""

    trials: tuple[Trial, ...]
    circles: tuple[CircleTrial, ...]
    seeds: int


def train_toys(
    task: str,
    scale: RankCollapseTraining,
    seed: int,
    parts: Parts,
    progress: Progress | None = None,
) -> tuple[Transformer, Toy, dict[str, float]]:
    """Attention with skips, no MLP and no norm, trained on a task or found trained.

    Returns the model, the task, and its accuracy, loss and seconds.
    """
    trial = next((trial for trial in scale.trials if trial.task == task), None)
    if trial is None:
        raise unknown_name("task", task, (trial.task for trial in scale.trials))
    toy = TASKS[task](seed=seed, **trial.data)
    torch.manual_seed(seed)
    model = Transformer(
        toy.config(layers=trial.layers, heads=trial.heads, width=trial.width, mlp=False, norm=False)
    )
    done = train(
        model,
        toy,
        replace(trial.settings, seed=seed),
        progress=progress,
        label=f"training on the task {task}",
        checkpoint=parts.checkpoint(_toy_name(task, seed)),
    )
    return model, toy, {"accuracy": done.accuracy, "loss": done.loss, "seconds": done.seconds}


def _toy_name(task: str, seed: int) -> str:
    return f"collapse/{task.replace(' ', '-')}/seed-{seed}"


def path_table(
    scale: RankCollapseTraining, parts: Parts, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """A row for every task, mode, reading and length.

    `accuracy` is the mean over seeds, `spread` their standard deviation.

    The modes `model` (full accuracy) and `baseline` have no length.
    """
    rows = []
    makes = {
        _toy_name(trial.task, seed): partial(_one_seed, trial, scale, seed, parts, progress)
        for trial in scale.trials
        for seed in range(scale.seeds)
    }
    found = iter(
        parts.each(
            makes, progress or silent, f"training and measuring {numbered(len(makes), 'toy model')}"
        )
    )
    for trial in scale.trials:
        for same in zip(*itertools.islice(found, scale.seeds)):
            each = [row["accuracy"] for row in same]
            spread = statistics.stdev(each) if len(each) > 1 else 0.0
            rows.append(
                {
                    "task": trial.task,
                    **same[0],
                    "accuracy": statistics.mean(each),
                    "spread": spread,
                    "each": each,
                }
            )
    return rows


def _one_seed(
    trial: Trial, scale: RankCollapseTraining, seed: int, parts: Parts, progress: Progress | None
) -> list[dict[str, Any]]:
    model, toy, trained = train_toys(trial.task, scale, seed, parts, progress)
    rows = [{"mode": "model", "reading": "whole", "length": None, "accuracy": trained["accuracy"]}]
    rows += [
        {"mode": "baseline", "reading": name, "length": None, "accuracy": value}
        for name, value in baselines(toy).items()
    ]
    found: dict[tuple[str, str], list[Tensor]] = {}
    number = len(list(toy.held_out()))
    for i, batch in enumerate(toy.held_out()):
        message = {("frozen", name): x for name, x in frozen_answers(model, batch).items()}
        if i < trial.batches:
            message |= {
                ("rerun", name): x
                for name, x in rerun_answers(model, batch, trial.paths, seed).items()
            }
        for key, answers in message.items():
            found.setdefault(key, []).append(answers == batch.targets)  # (lengths, networks, B, …)
        if progress is not None:
            progress(f"answering from single paths: {trial.task}", i + 1, number)
    for (mode, reading), right in found.items():
        shares = torch.cat(right, 2).double().flatten(1).mean(1).tolist()
        first = 1 if mode == "rerun" else 0
        rows += [
            {"mode": mode, "reading": reading, "length": k + first, "accuracy": x}
            for k, x in enumerate(shares)
        ]
    return rows


def baselines(toy: Toy) -> dict[str, float]:
    """Accuracy without looking at the input.

    It is that of a guess, of the commonest class, and of the commonest class at each place, as in
    the training data.
    """
    learned, asked = (
        toy.train.targets.reshape(len(toy.train.targets), -1),
        toy.test.targets.reshape(len(toy.test.targets), -1),
    )
    commonest, by_place = learned.flatten().mode().values, learned.mode(0).values
    return {
        "chance": 1 / toy.classes,
        "majority": float((asked == commonest).double().mean()),
        "place": float((asked == by_place).double().mean()),
    }


@torch.no_grad()
def frozen_answers(model: Transformer, batch: TaskBatch) -> dict[str, Tensor]:
    """The classes that the terms of every length are read out as.

    Per token (L+1, 1, B, T), pooled (L+1, 1, B).
    """
    lengths = decompose_paths(freeze(model, {}, forward=lambda _: model(batch.inputs))[0])
    return readings(model, lengths.terms, lengths.bias)


@torch.no_grad()
def readings(model: Transformer, terms: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Terms (K, B, T, C) and bias (B, T, C), behind the last norm, as classes.

    Per token (K, 1, B, T), pooled (K, 1, B).
    """
    streams = {"alone": terms, "up to": terms.cumsum(0) + bias}
    if not model.config.pooled:  # of the residual nothing is left in the mean
        streams["residual"] = terms - terms.mean(2, keepdim=True)
    return {
        name: torch.stack([_classes(model, x)[None] for x in stream])
        for name, stream in streams.items()
    }


@torch.no_grad()
def rerun_answers(
    model: Transformer, batch: TaskBatch, number: int, seed: int
) -> dict[str, Tensor]:
    """Classes by random paths of 1 … L hops.

    By the mean of the paths, (L, 1, B, …), and by each of them, (L, number, B, …).

    As in the frozen terms, the biases of values and outputs belong to no path.
    """
    config, model = model.config, without_biases(model)
    means, singles, residuals = [], [], []
    for hops in range(1, config.layers + 1):
        sample = draw_paths(torch.ones(config.layers, config.heads), hops, number, seed)
        # (S, B, T, C)
        streams = rerun_paths(model, {}, sample, forward=lambda _: model(batch.inputs))
        mean = streams.mean(0)
        means.append(_classes(model, mean)[None])
        residuals.append(_classes(model, mean - mean.mean(1, keepdim=True))[None])
        singles.append(torch.stack([_classes(model, x) for x in streams]))
    found = {"alone": torch.stack(means), "single": torch.stack(singles)}
    return found if config.pooled else {**found, "residual": torch.stack(residuals)}


def without_biases(model: Transformer) -> Transformer:
    """A copy whose attention adds nothing to the stream but `Σ_h P_h X W_h`.

    Queries and keys keep their biases.
    """
    copied = copy.deepcopy(model)
    for name, bias in copied.named_parameters():
        if name.endswith("attention.out.bias"):
            bias.data.zero_()
        if name.endswith("attention.project.bias"):
            bias.data.chunk(3)[2].zero_()
    return copied


def _classes(model: Transformer, x: Tensor) -> Tensor:
    return model.read(x).argmax(-1)


def circle_table(
    scale: RankCollapseTraining, parts: Parts, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """The rows of `circle.circles` for all circles of a training."""
    return circles(scale.circles, scale.seeds, parts, progress)


FULL = RankCollapseTraining(
    trials=(
        Trial(
            "sort", {}, 6, 2, 48, TrainingSettings(600, batch=64, rate=2e-3, measure=100), paths=24
        ),
        Trial(
            "convex hull",
            {},
            6,
            3,
            84,
            TrainingSettings(600, batch=64, rate=2e-3, measure=100),
            paths=24,
        ),
        Trial(
            "memorise",
            {},
            6,
            2,
            250,
            TrainingSettings(200, batch=16, rate=1e-3, warmup=20, measure=50),
            paths=6,
            batches=1,
        ),
    ),
    circles=(
        CircleTrial(0.0, TrainingSettings(500, batch=64, rate=1e-3)),
        CircleTrial(0.01, TrainingSettings(2000, batch=64, rate=3e-3, measure=500)),
    ),
    seeds=3,
)
QUICK = RankCollapseTraining(
    trials=(
        Trial(
            "sort",
            {"train": 300, "test": 50},
            2,
            2,
            16,
            TrainingSettings(60, batch=32, rate=1e-2, warmup=5),
            paths=4,
        ),
        Trial(
            "convex hull",
            {"train": 300, "test": 50},
            2,
            3,
            24,
            TrainingSettings(60, batch=32, rate=4e-3, warmup=5),
            paths=4,
        ),
        Trial(
            "memorise",
            {"number": 40, "length": 16},
            2,
            2,
            16,
            TrainingSettings(40, batch=20, rate=1e-2, warmup=5),
            paths=4,
        ),
    ),
    circles=(CircleTrial(0.0, TrainingSettings(150, batch=32, rate=1e-2, warmup=10), steps=40),),
    seeds=1,
)
