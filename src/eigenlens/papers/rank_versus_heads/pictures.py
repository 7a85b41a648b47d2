"""Pictures of rank against number of heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..line_chart import line_chart


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    squares = [
        {**row, "heads": "rH = d" if row["times"] == 1 else f"rH = {row['times']}d"}
        for row in tables["least squares"]
    ] + [
        {**row, "heads": "rH = d, trained, 1 layer"}
        for row in tables["training"]
        if row["layers"] == 1
    ]
    theory = [
        {"heads": row["heads"], "error": row[key], "by": key}
        for key in ("theory", "simulated", "limit")
        for row in tables["rank one"]
    ]
    panels = [
        line_chart(
            squares,
            "rank",
            "error",
            "heads",
            title="Nearest of 16 points, d = 8",
            axis_titles=("rank r", "error"),
            band=("low", "high"),
        ),
        line_chart(
            theory,
            "heads",
            "error",
            "by",
            title="Rank one, N = 2",
            axis_titles=("heads H", "error"),
            log={"x"},
        ),
        line_chart(
            tables["truncation"],
            "rank",
            "kept",
            "model",
            title="What loaded models keep, all heads cut",
            axis_titles=("rank r of every head", "cosine kept, or next tokens"),
        ),
    ]
    alone = [
        {**row, "order": order}
        for rows in _by_rank(tables["one head"])
        for order, row in enumerate(rows)
    ]
    each = line_chart(
        alone,
        "order",
        "kept",
        "cut to",
        title="What loaded models keep, one head cut at a time",
        axis_titles=("heads, worst first", "kept"),
        width=420,
    )
    return {
        "rank-versus-heads": alt.hconcat(*panels).resolve_scale(color="independent"),
        "rank-one-head": each,
    }


def _by_rank(alone: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    kinds = dict.fromkeys((row["model"], row["rank"]) for row in alone)
    return [
        sorted(
            (
                {**row, "cut to": f"{model}, rank {rank}"}
                for row in alone
                if (row["model"], row["rank"]) == (model, rank)
            ),
            key=lambda row: row["kept"],
        )
        for model, rank in kinds
    ]
