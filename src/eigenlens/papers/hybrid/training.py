"""A miniature: function composition learned by patterns of full and linear layers.

All of them train from scratch, for equal steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...display import numbered
from ...lab import Composition, TrainingSettings, Transformer, train
from ...run.parts import Parts
from ...run.progress import Progress


def trained(
    patterns: Sequence[str],
    functions: int,
    values: int,
    shape: dict[str, Any],
    settings: TrainingSettings,
    seeds: int,
    seed: int,
    parts: Parts,
    progress: Progress,
) -> list[dict[str, Any]]:
    """A row for every pattern, seed and measurement.

    It has the share of last answers that are right.

    Every answer on the way is asked for in training: from the last one alone nothing is learned in
    thousands of steps.
    """
    makes = {}
    for pattern in patterns:
        for trial in range(seeds):
            name = f"training/{functions}-{pattern}/seed-{trial}"
            start = seed * 1000 + trial
            makes[name] = partial(
                _one, pattern, functions, values, shape, settings, start, name, parts, progress
            )
    stage = f"training {numbered(len(makes), 'model')}"
    return [row for rows in parts.each(makes, progress, stage) for row in rows]


def _one(
    pattern: str,
    functions: int,
    values: int,
    shape: dict[str, Any],
    settings: TrainingSettings,
    seed: int,
    name: str,
    parts: Parts,
    progress: Progress,
) -> list[dict[str, Any]]:
    task = Composition(functions=functions, values=values, order="forward")
    torch.manual_seed(seed)
    model = Transformer(task.config(layers=len(pattern), mechanism=pattern, **shape))
    done = train(
        model,
        task,
        TrainingSettings(**{**vars(settings), "seed": seed}),
        progress=progress,
        label=f"training layers {pattern} to compose {functions} functions",
        checkpoint=parts.checkpoint(name),
    )
    facts = {
        "functions": functions,
        "values": values,
        "pattern": pattern,
        "full": pattern.count("F"),
        "seed": seed,
    }
    return [
        {**facts, "step": point.step, "accuracy": point.accuracy, "loss": point.loss}
        for point in done.curve
    ]


def last_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last measurement of every pattern: mean, least and largest of the seeds."""
    found = []
    for functions, pattern in dict.fromkeys((row["functions"], row["pattern"]) for row in rows):
        of = [row for row in rows if (row["functions"], row["pattern"]) == (functions, pattern)]
        last = max(row["step"] for row in of)
        right = [row["accuracy"] for row in of if row["step"] == last]
        found.append(
            {
                "functions": functions,
                "pattern": pattern,
                "full": of[0]["full"],
                "steps": last,
                "seeds": len(right),
                "accuracy": sum(right) / len(right),
                "low": min(right),
                "high": max(right),
                "chance": 1 / of[0]["values"],
            }
        )
    return found
