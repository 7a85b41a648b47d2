"""What every mechanism learns with equally many weights and steps, against its cost."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..display import numbered
from ..run.parts import Parts
from ..run.progress import OneOf, Progress
from .entrants import FULL, fits
from .result import Bench
from .training import TASKS, LabScale, config_of, spread, task_named, trained, weights_of

Row = dict[str, Any]
QUALITY_QUICK = LabScale(
    seeds=(0,), steps=30, batch=8, length=32, width=32, windows=16, characters=60_000
)


def quality(
    scale: LabScale, parts: Parts, names: Sequence[str], progress: Progress, store: Path
) -> Bench:
    """Train every mechanism on every task in its direction, from every seed.

    One model is one part.
    """
    rows: list[Row] = []
    runs = [(task, name) for task in scale.tasks for name in names if fits(name, TASKS[task])]
    number = len(runs) * len(scale.seeds)
    stage = f"training {numbered(number, 'model')}"
    progress(stage, 0, number)
    for done, (at, name) in enumerate(runs):
        each = [
            parts.part(
                f"{at.replace(' ', '-')}/{name}-{seed}",
                functools.partial(
                    _one,
                    at,
                    name,
                    seed,
                    scale,
                    store,
                    OneOf(progress, stage, done * len(scale.seeds) + i, number),
                ),
            )
            for i, seed in enumerate(scale.seeds)
        ]
        rows.append(_summary(at, name, each))
    rows = [_beside(row, rows) for row in rows]
    weights = {
        task: [row["weights"] for row in rows if row["task"] == task] for task in scale.tasks
    }
    notes = [
        f"{task}: models of {min(w):,} to {max(w):,} weights, {scale.steps} steps of {scale.batch}"
        " inputs"
        for task, w in weights.items()
        if w
    ]
    return Bench(
        "quality",
        f"Quality against cost, {numbered(len(scale.seeds), 'seed')}",
        sentence(rows),
        tables={"quality": rows},
        notes=tuple(notes),
        shown=(
            (
                "Held-out loss (mean, least and largest of the seeds) with equal weights and steps;"
                " attention cost in multiply-adds, full attention = 1",
                "quality",
            ),
        ),
    )


def _one(at: str, name: str, seed: int, scale: LabScale, store: Path, progress: Progress) -> Row:
    task = task_named(at, scale)
    config = config_of(task, name, scale)
    kept = store if seed == scale.seeds[0] else None  # the spectra look at the first seed's
    model, found = trained(task, config, seed, scale, kept, progress)
    return {
        "loss": found.loss,
        "accuracy": found.accuracy,
        "milliseconds_a_step": 1e3 * found.seconds / found.steps,
        "weights": weights_of(config),
        "mlp_width": config.mlp_width,
        "attention_multiply_adds": model.attention_cost(task.length),
        "multiply_adds": model.cost(task.length),
    }


def _summary(task: str, name: str, each: Sequence[Row]) -> Row:
    loss, low, high = spread([row["loss"] for row in each])
    accuracy, least, most = spread([row["accuracy"] for row in each])
    return {
        "task": task,
        "mechanism": name,
        "loss": loss,
        "loss_low": low,
        "loss_high": high,
        "accuracy": accuracy,
        "accuracy_low": least,
        "accuracy_high": most,
        "milliseconds_a_step": spread([row["milliseconds_a_step"] for row in each])[0],
        **{
            key: each[0][key]
            for key in ("weights", "mlp_width", "attention_multiply_adds", "multiply_adds")
        },
    }


def _beside(row: Row, rows: Sequence[Row]) -> Row:
    """The row with its attention cost as a share of full attention's, if that took part."""
    full = next(
        (other for other in rows if other["task"] == row["task"] and other["mechanism"] == FULL),
        None,
    )
    share = (
        None if full is None else row["attention_multiply_adds"] / full["attention_multiply_adds"]
    )
    return {**row, "share_of_full": share}


def sentence(rows: Sequence[Row]) -> str:
    """The best of each task, and what full attention comes to beside it, in words."""
    message: list[str] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = sorted((row for row in rows if row["task"] == task), key=lambda row: row["loss"])
        best, full = mine[0], next((row for row in mine if row["mechanism"] == FULL), None)
        text = (
            f"{'O' if not message else 'o'}n {task} {best['mechanism']} ends lowest with a loss of"
            f" {best['loss']:.3f}"
        )
        if full is not None and full is not best:
            within = full["loss_low"] <= best["loss_high"]
            text += (
                " (full attention"
                f" {full['loss']:.3f}{', within the spread of the seeds' if within else ''})"
            )
        message.append(text)
    return f"{'; '.join(message)}." if message else "No mechanism fits a task."
