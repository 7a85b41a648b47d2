"""Pictures of costs and of training with FAST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..curves import curves


def mean_curves(training: Sequence[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    """Mean accuracy over the seeds at every measured step of a task."""
    of_task = [row for row in training if row["task"] == task]
    return [
        {
            "mechanism": kind,
            "step": step,
            "accuracy": sum(values) / len(values),
            "low": min(values),
            "high": max(values),
        }
        for kind, step in dict.fromkeys((row["mechanism"], row["step"]) for row in of_task)
        for values in [
            [row["accuracy"] for row in of_task if (row["mechanism"], row["step"]) == (kind, step)]
        ]
    ]


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    time = curves(
        tables["times"],
        "tokens",
        "milliseconds",
        "mechanism",
        title="A causal pass of one thread, 8 heads of width 32",
        names=("tokens", "milliseconds"),
        log=("x", "y"),
    )
    learned = [
        curves(
            mean_curves(tables["training"], task),
            "step",
            "accuracy",
            "mechanism",
            title=title,
            band=("low", "high"),
            names=("training steps", "held-out accuracy"),
        )
        for task, title in (
            ("text", "Learning the next byte of text"),
            ("sort", "Learning to sort"),
        )
    ]
    width = max(row["D"] for row in tables["start"])
    uneven = [
        {**row, "uneven": 1 - row["entropy / ln N"]} for row in tables["start"] if row["D"] == width
    ]
    start = curves(
        uneven,
        "tokens",
        "uneven",
        "mechanism",
        title=f"How far from even attention is at the start, D = {width}",
        names=("tokens", "1 − entropy / ln N"),
        log=("y",),
    )
    return {"time": time, "training": alt.hconcat(*learned), "entropy": start}
