"""The picture of the training experiment: quality against three kinds of cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables

AXES = {
    "share": "share of pairs (or of dimensions) computed",
    "attention_cost": "multiply-adds of attention, full = 1",
    "forward_milliseconds": "milliseconds of a forward pass",
}


def quality_against_cost(rows: Sequence[dict[str, Any]]) -> Any:
    """Held-out loss of every mechanism against pairs, multiply-adds and time (an altair chart).

    Tuned mechanisms are filled, drop-ins hollow.
    """
    import altair as alt

    data = [
        {
            **row,
            "name": row["mechanism"],
            "tuning": "drop-in" if row["protocol"] == "drop-in" else "tuned",
        }
        for row in rows
        if row["protocol"] not in {"frozen", "refit"}
    ]
    names = list(dict.fromkeys(row["name"] for row in data))
    tuned = [row["loss"] for row in data if row["tuning"] == "tuned"]
    spread = max(tuned) - min(tuned)
    span = [min(tuned) - 0.1 * spread, max(tuned) + 0.5 * spread]
    panels = []
    for key, title in AXES.items():
        base = alt.Chart(alt.Data(values=data)).encode(
            x=alt.X(f"{key}:Q", title=title),
            y=alt.Y(
                "loss:Q",
                title="held-out nats per masked byte",
                scale=alt.Scale(domain=span, clamp=True),
            ),
            color=alt.Color(
                "name:N", sort=names, title="attention", scale=alt.Scale(scheme="tableau10")
            ),
            tooltip=["name:N", "protocol:N", "share:Q", alt.Tooltip("loss:Q", format=".3f")],
        )
        tuned_only = base.transform_filter("datum.tuning == 'tuned'")
        dropped = base.transform_filter("datum.tuning == 'drop-in'").mark_point(size=45)
        lines, points = (
            tuned_only.mark_line(strokeWidth=1).encode(order="share:Q"),
            tuned_only.mark_circle(size=55, opacity=1),
        )
        panels.append((lines + dropped + points).properties(width=260, height=240))
    return alt.hconcat(*panels).properties(
        title="Training with another attention (hollow: dropped in without tuning)"
    )


def charts(tables: Tables) -> dict[str, Any]:
    """The picture of the training; the other tables are read as numbers."""
    return {"training": quality_against_cost(tables["training"])}
