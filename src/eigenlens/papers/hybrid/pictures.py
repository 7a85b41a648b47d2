"""Pictures of composition, capacity, speed and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..line_chart import line_chart


def charts(tables: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    import altair as alt

    rows = [
        {**row, "linear look-ups": str(row["linear"] or "none")} for row in tables["composition"]
    ]
    deep = max(row["functions"] for row in rows)
    chance = [
        {**row, "accuracy": row["chance"], "linear look-ups": "a guess"}
        for row in rows
        if row["linear"] == 0
    ]
    panels = [
        _at_powers(
            line_chart(
                [
                    row
                    for kind in ("a guess", "none", *map(str, range(1, deep + 1)))
                    for row in (*rows, *chance)
                    if row["functions"] == L and row["linear look-ups"] == kind
                ],
                "values",
                "accuracy",
                "linear look-ups",
                title=f"{L} function{'s' if L > 1 else ''}",
                axis_titles=("values N", "right answers"),
                log=("x", "y"),
                width=230,
            )
        )
        for L in range(1, deep + 1)
    ]
    composed = alt.hconcat(*panels).properties(
        title="Composition of functions, some look-ups by the best linear state for their table"
    )
    held = [row for row in tables["capacity"] if row["mechanism"] != "sum of pairs"]
    times = [row for row in tables["speed"] if not row["form"].endswith("loop")]
    return {
        "composition": composed,
        "capacity": _at_powers(
            line_chart(
                held,
                "pairs",
                "left",
                "mechanism",
                title="What is left of N Gaussian pairs, states of width 16",
                axis_titles=("pairs N", "share of the values left"),
                log=("x",),
                band=("low", "high"),
            )
        ),
        "speed": _at_powers(
            line_chart(
                times,
                "tokens",
                "milliseconds",
                "form",
                title="Forward pass by length",
                axis_titles=("tokens", "milliseconds of processor time"),
                log=("x", "y"),
            )
        ),
        "training": _learned(tables["training"]),
    }


def _at_powers(chart: Any) -> Any:
    """The same chart with an axis of the powers of two that were measured."""
    import altair as alt

    for layer in chart.layer:
        if isinstance(layer, alt.LayerChart):
            _at_powers(layer)
        else:
            x = layer.encoding.x
            x.scale, x.axis = (
                alt.Scale(type="log", base=2, nice=False),
                alt.Axis(format="~d", labelOverlap=True),
            )
    return chart


def _learned(rows: Sequence[dict[str, Any]]) -> Any:
    """Mean of the seeds over the steps, with their range."""
    points = []
    for pattern, step in dict.fromkeys((row["pattern"], row["step"]) for row in rows):
        right = [
            row["accuracy"] for row in rows if (row["pattern"], row["step"]) == (pattern, step)
        ]
        points.append(
            {
                "pattern": pattern,
                "step": step,
                "accuracy": sum(right) / len(right),
                "low": min(right),
                "high": max(right),
            }
        )
    return line_chart(
        points,
        "step",
        "accuracy",
        "pattern",
        title="Composition learned from scratch (a miniature)",
        axis_titles=("training steps", "right last answers"),
        band=("low", "high"),
    )
