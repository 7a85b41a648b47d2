"""Pictures of gates, sinks and training."""

from __future__ import annotations

from typing import Any

from ..claims import Tables
from ..line_chart import line_chart


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    order = list(dict.fromkeys(row["gate"] for row in tables["runs"]))
    colours = alt.Scale(domain=order, scheme="tableau10")
    every = alt.Chart(alt.Data(values=list(tables["runs"])))
    hover = [
        "gate:N",
        "seed:N",
        *(alt.Tooltip(f"{key}:Q", format=".4g") for key in ("mean_gate", "first_token", "loss")),
    ]
    points = (
        every.transform_filter("datum.mean_gate != null")
        .mark_circle(size=90, opacity=0.9)
        .encode(
            x=alt.X("mean_gate:Q", title="mean gate", scale=alt.Scale(zero=False)),
            y=alt.Y("first_token:Q", title="attention to the first token"),
            color=alt.Color("gate:N", scale=colours),
            tooltip=hover,
        )
    )
    plain = (
        every.transform_filter("datum.gate == 'none'")
        .mark_rule(strokeDash=[4, 3])
        .encode(
            y="first_token:Q",
            color=alt.Color("gate:N", scale=colours),
            tooltip=hover,
        )
    )
    sink = (plain + points).properties(
        title="Mean gate and sink, one point per model (dashed: no gate)", width=340, height=260
    )
    loss = every.mark_circle(size=70, opacity=0.9).encode(
        x=alt.X("loss:Q", title="held-out loss (nats per byte)", scale=alt.Scale(zero=False)),
        y=alt.Y("gate:N", sort=order, title=None),
        color=alt.Color("gate:N", legend=None, scale=colours),
        tooltip=hover,
    )
    spans = line_chart(
        tables["spans"],
        "queries",
        "span",
        "gate",
        title="Span of the queries' value-output maps",
        axis_titles=("queries n", "dimension of the span"),
    )
    return {
        "gated": sink,
        "loss": loss.properties(title="Loss after equal steps", width=340, height=180),
        "spans": spans,
    }
