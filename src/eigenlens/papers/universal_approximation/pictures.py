"""Pictures of errors by anchors, by heads and by hidden units."""

from __future__ import annotations

from typing import Any

from ..claims import Tables
from ..line_chart import line_chart


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    names = {
        "hard": "hard β: Δ/2 to the eye",
        "soft": "β = 2/Δ",
        "soft, inside": "β = 2/Δ, off the ends",
    }
    over_p, over_h = (
        [
            {"x": row[x], "error": row[key], "attention": name}
            for key, name in names.items()
            for row in rows
        ]
        for x, rows in (("intervals", tables["anchors"]), ("H", tables["heads"]))
    )
    two = [
        {"x": row["intervals"], "error": row[key], "attention": name}
        for key, name in (("hard", "hard β"), ("bound", "bound, hard β"), ("soft", "β = 2/Δ"))
        for row in tables["sort of two"]
    ]
    log = {"x", "y"}
    panels = [
        line_chart(
            over_p,
            "x",
            "error",
            "attention",
            title="Largest error of a ramp, one head",
            axis_titles=("anchors p − 1", "largest error"),
            log=log,
        ),
        line_chart(
            over_h,
            "x",
            "error",
            "attention",
            title="9 anchors per head",
            axis_titles=("heads H", "largest error"),
            log=log,
        ),
    ]
    maps = line_chart(
        tables["map errors"],
        "units",
        "attention",
        "target",
        title="Two layers, any target",
        band=("low", "high"),
        log=log,
        axis_titles=("hidden units", "relative error"),
    )
    pair = line_chart(
        two,
        "x",
        "error",
        "attention",
        title="Two layers sort two numbers",
        axis_titles=("p − 1", "largest error"),
        log=log,
    )
    return {
        "universal-approximation": alt.hconcat(*panels),
        "sequence-maps": alt.hconcat(pair, maps).resolve_scale(color="independent"),
    }
