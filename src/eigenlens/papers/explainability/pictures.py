"""Deletion curves of every method, and where each stands in both orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..line_chart import line_chart

TITLES = {
    "reviews": "reviews, minilm + probe",
    "clothing": "pictures of clothing, dinov2-small + probe",
    "stories": "next token of stories, stories15m",
}
ORDERS = {
    "positive": "most relevant first (low is good)",
    "negative": "least relevant first (high is good)",
}


def charts(tables: Tables) -> dict[str, Any]:
    """Probability by fraction, the same of accuracy, and areas with intervals."""
    return {
        "deletion": _panels(tables["curves"], "probability", "probability of the first choice"),
        "accuracy": _panels(tables["curves"], "accuracy", "share right"),
        "areas": _areas(tables["areas"]),
        "planted": _planted(tables["planted"]),
    }


def _panels(rows: Sequence[dict[str, Any]], y: str, name: str) -> Any:
    """Panels: one row per task, one column per order."""
    import altair as alt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    lines = []
    for task in tasks:
        panels = [
            line_chart(
                [row for row in rows if (row["task"], row["order"]) == (task, order)],
                "fraction",
                y,
                "method",
                title=f"{task}: {message}",
                axis_titles=("share of tokens taken away", name),
                width=330,
                height=210,
            )
            for order, message in ORDERS.items()
        ]
        lines.append(alt.hconcat(*panels).resolve_scale(y="shared"))
    return alt.vconcat(*lines)


def _areas(rows: Sequence[dict[str, Any]]) -> Any:
    """Each method's areas with their intervals, a panel per task.

    Methods in the order of the positive area.
    """
    import altair as alt

    panels = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = sorted((row for row in rows if row["task"] == task), key=lambda row: row["positive"])
        data = [
            {
                "method": row["method"],
                "order": order,
                "area": row[order],
                "low": row[f"{order} low"],
                "high": row[f"{order} high"],
            }
            for row in own
            for order in ORDERS
        ]
        base = alt.Chart(alt.Data(values=data)).encode(
            y=alt.Y(
                "method:N",
                sort=[row["method"] for row in own],
                title=None,
                axis=alt.Axis(labelLimit=200),
            ),
            color=alt.Color(
                "order:N",
                sort=list(ORDERS),
                title="goes first",
                legend=alt.Legend(labelExpr=_LEGEND),
            ),
        )
        bars = base.mark_rule(strokeWidth=2).encode(
            x=alt.X("low:Q", title="area under the curve", scale=alt.Scale(zero=False)), x2="high:Q"
        )
        points = base.mark_circle(size=60, opacity=1).encode(
            x="area:Q", tooltip=["method:N", "order:N", alt.Tooltip("area:Q", format=".3f")]
        )
        panels.append((bars + points).properties(width=250, height=190, title=TITLES[task]))
    return alt.concat(*panels, columns=2)


_LEGEND = "datum.label == 'positive' ? 'most relevant' : 'least relevant'"


def _planted(rows: Sequence[dict[str, Any]]) -> Any:
    """How often each method ranks the planted token first: a circle per model, a tick: mean."""
    import altair as alt

    data = [
        {**row, "model": f"{row['norms']}, {row['read']}", "share": row["top-ranked"]}
        for row in rows
    ]
    order = list(dict.fromkeys(row["method"] for row in rows))
    base = alt.Chart(alt.Data(values=data)).encode(
        y=alt.Y("method:N", sort=order, title=None, axis=alt.Axis(labelLimit=200)),
        x=alt.X("share:Q", title="planted token ranked first", axis=alt.Axis(format="%")),
    )
    points = base.mark_circle(size=45, opacity=0.6).encode(
        color=alt.Color("model:N", title="norms, read"),
        tooltip=["method:N", "model:N", "seed:O", alt.Tooltip("share:Q", format=".0%")],
    )
    mean = base.mark_tick(color="black", thickness=2, height=16).encode(x=alt.X("mean(share):Q"))
    return (points + mean).properties(
        width=360,
        height=230,
        title="How often each method ranks the planted token first (bar: mean)",
    )
