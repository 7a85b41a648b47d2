"""Pictures of the training and of the heads of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...captures import Labels, location_of
from ..claims import Tables

SMALL = 0.05
"""Scores below are not drawn: most heads have them all near 0."""


def charts(tables: Tables) -> dict[str, Any]:
    """The training, with published figures as crosses, and the heads of models.

    The heads are drawn by layer, and for each model as a map of points.
    """
    import altair as alt

    rows = [row for row in tables["epochs"] if row["epoch"] > 0]
    panels = [
        _line(rows, name, title, published)
        for name, title, published in (
            ("p", "p of the true parents", tables["curve"]),
            ("copies", "layer 1: weight on the parent copied", ()),
            ("a", "a of layer 2", tables["curve"]),
            ("off", "output: distance from the true kernel", ()),
        )
    ]
    training = alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:]))
    models = list(dict.fromkeys(row["model"] for row in tables["heads"]))
    panels = [
        panel
        for model in models
        for panel in _heads([row for row in tables["heads"] if row["model"] == model], model)
    ]
    title = f"Heads by layer (scores of at least {SMALL:g})"
    pictures = {
        "training": training,
        "heads": alt.concat(*panels, columns=2, title=title).resolve_scale(color="shared"),
    }
    if tables["ablation"]:
        pictures["ablation"] = _ablation(tables["ablation"])
    return pictures


def _line(
    rows: Sequence[dict[str, Any]], name: str, title: str, published: Sequence[dict[str, Any]]
) -> Any:
    """The mean over seeds against the epoch.

    The band goes from the least to the largest seed; crosses are published figures.
    """
    import altair as alt

    by_epoch: dict[int, list[float]] = {}
    for row in rows:
        by_epoch.setdefault(row["epoch"], []).append(row[name])
    data = [
        {"epoch": e, "mean": sum(v) / len(v), "low": min(v), "high": max(v)}
        for e, v in by_epoch.items()
    ]
    last = max(by_epoch)
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000) if tick <= last]
    x = alt.X(
        "epoch:Q",
        title="epoch",
        scale=alt.Scale(type="log", domain=[1, last]),
        axis=alt.Axis(values=ticks, format="d"),
    )
    base = alt.Chart(alt.Data(values=data)).encode(x=x)
    y = alt.Y("mean:Q", title=None, scale=alt.Scale(zero=False))
    chart = base.mark_area(opacity=0.25, color="#20466e").encode(
        y=alt.Y("low:Q", title=None), y2="high:Q"
    )
    chart += base.mark_line(strokeWidth=1.8, color="#20466e").encode(y=y)
    if published:
        marks = [{"epoch": row["epoch"], "mean": row[f"published {name}"]} for row in published]
        crosses = alt.Chart(alt.Data(values=marks)).mark_point(
            shape="cross", size=90, filled=True, color="#c0392b", opacity=1
        )
        chart += crosses.encode(
            x=x, y=y, tooltip=["epoch:Q", alt.Tooltip("mean:Q", title="published", format=".4g")]
        )
    title = f"{title} (crosses: published)" if published else title
    return chart.properties(title=title, width=300, height=180)


def _heads(rows: Sequence[dict[str, Any]], model: str) -> list[Any]:
    """A point for each head and score above `SMALL`, by layer, a panel per stack."""
    import altair as alt

    kinds = {
        "previous": "the token before",
        "duplicate": "the same token",
        "prefix": "what followed it (induction)",
    }
    colours = alt.Scale(domain=list(kinds.values()), range=["#8fbcb0", "#c9a227", "#b3305a"])
    panels = []
    labels = Labels(row["stack"] for row in rows)
    for stack in dict.fromkeys(row["stack"] for row in rows):
        some = [row for row in rows if row["stack"] == stack]
        points = [
            {
                "layer": row["layer"],
                "head": labels(location_of(row)),
                "attention to": message,
                "share": row[name],
            }
            for name, message in kinds.items()
            for row in some
            if row[name] >= SMALL
        ]
        ends = alt.Scale(domain=[-0.5, max(row["layer"] for row in some) + 0.5], nice=False)
        base = alt.Chart(alt.Data(values=points)).mark_circle(size=50, opacity=0.8)
        panels.append(
            base.encode(
                x=alt.X(
                    "layer:Q",
                    title="layer",
                    scale=ends,
                    axis=alt.Axis(tickMinStep=1, format="d", grid=False),
                ),
                y=alt.Y("share:Q", title="share of the attention", scale=alt.Scale(domain=[0, 1])),
                color=alt.Color("attention to:N", scale=colours, title="attention to"),
                tooltip=[
                    "head:N",
                    "attention to:N",
                    alt.Tooltip("share:Q", format=".3f"),
                ],
            ).properties(
                width=300,
                height=180,
                title=model if len(some) == len(rows) else f"{model}, {labels.stack(stack)}",
            )
        )
    return panels


def _ablation(rows: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    order = ["all heads", "without as many others", "without previous-token heads"]
    return (
        alt.Chart(alt.Data(values=list(rows)))
        .mark_point(filled=True, size=90, opacity=0.8)
        .encode(
            x=alt.X("prefix of induction heads:Q", scale=alt.Scale(zero=True)),
            y=alt.Y("heads:N", sort=order, title=None, axis=alt.Axis(labelLimit=260)),
            color=alt.Color("model:N", title="model"),
            tooltip=[
                "model:N",
                "heads:N",
                alt.Tooltip("prefix of induction heads:Q", format=".3f"),
                "ablated:N",
            ],
        )
        .properties(width=340, height=110, title="Mean prefix score of the induction heads")
    )
