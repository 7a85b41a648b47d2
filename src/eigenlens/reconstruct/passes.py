"""Whole passes of a model as it is and with something changed, in turn, and the rows that say what changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from ..run.progress import Report
from ..sources.forward import forward_of
from .evaluation import SECONDS
from .held_out import HeldOut
from .tasks import task_of


def whole_passes(
    held: HeldOut, number: int, applied: Callable[[], AbstractContextManager[Any]], report: Report
) -> list[dict[str, Any]]:
    """The task's measure and the seconds of whole passes, plain and under `applied()` in turn."""
    forward, task, seconds, done = forward_of(held.model, whole=True), None, [0.0, 0.0], 0
    batches = held.batches(number)
    total = sum(map(held.size, batches))
    with torch.no_grad():
        forward(batches[0])  # the first pass of a process is slower
        for batch in batches:
            begin = time.perf_counter()
            plain = forward(batch)
            middle = time.perf_counter()
            with applied():
                planned = forward(batch)
            seconds = [seconds[0] + middle - begin, seconds[1] + time.perf_counter() - middle]
            task = task or task_of(held.model, plain)
            task.add(batch, plain, planned)
            done += held.size(batch)
            report("whole passes", done, total)
    assert task is not None
    return [*task.result(), {"measure": SECONDS, "plain": seconds[0], "planned": seconds[1]}]


def with_change(row: dict[str, Any]) -> dict[str, Any]:
    """What the planned figure is above the plain one, of that; none where the plain figure is 0 or 1 by definition."""
    compares = row["plain"] not in {0.0, 1.0}
    return {**row, "change": row["planned"] / row["plain"] - 1 if compares else None}


def means(heads: list[dict[str, Any]], measures: dict[str, str]) -> list[dict[str, Any]]:
    """One row a measure, the mean of the heads, beside what it is where nothing is changed."""
    plain = {"top_1": 1.0, "pairs": 1.0, "work": 1.0}
    return [
        {"measure": label, "plain": plain.get(name, 0.0), "planned": float(np.mean([head[name] for head in heads]))}
        for name, label in measures.items()
    ]
