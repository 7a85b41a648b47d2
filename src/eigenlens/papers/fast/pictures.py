"""Pictures of costs and of training with FAST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..line_chart import line_chart


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

    time = line_chart(
        tables["times"],
        "tokens",
        "milliseconds",
        "mechanism",
        title="A causal pass of one thread, 8 heads of width 32",
        axis_titles=("tokens", "milliseconds"),
        log=("x", "y"),
    )
    learned = [
        line_chart(
            mean_curves(tables["training"], task),
            "step",
            "accuracy",
            "mechanism",
            title=title,
            band=("low", "high"),
            axis_titles=("training steps", "held-out accuracy"),
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
    start = line_chart(
        uneven,
        "tokens",
        "uneven",
        "mechanism",
        title=f"How far from even attention is at the start, D = {width}",
        axis_titles=("tokens", "1 − entropy / ln N"),
        log=("y",),
    )
    return {"time": time, "training": alt.hconcat(*learned), "entropy": start}
