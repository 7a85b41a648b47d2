"""Pictures of plans and evaluations, as altair charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ..display import visible
from ..spectra.plots import labelled_map

ORDER = [
    "rows-ls",
    "rows-lmmse",
    "matrices-lmmse",
    "cur",
    "key-pca",
    "joint",
    "joint-grouped",
    "joint-fitted",
    "adaptive",
    "plan",
]


CHANGE = 0.1
"""Differences of weights of at least this have the full colour.

All budgets have the same scale, so that their pictures can be compared.
"""


def budget_curves(
    curve: Sequence[dict[str, Any]], chosen: dict[str, Any] | None = None
) -> alt.HConcatChart:
    """Mean total variation of every estimator against its budget and its multiply-adds.

    `curve` has one row per estimator and budget; `chosen` is the plan's own point. A dashed line
    marks what the mean of each key position alone gives.
    """
    # the mean alone works nothing
    rows = [row for row in curve if row["budget"] is not None and row["work"] > 0]
    if chosen is not None and chosen["work"] > 0:
        rows = [*rows, {"estimator": "plan", "budget": chosen["work"], **chosen}]
    rows = [{**row, "shown": max(row["total_variation"], 1e-4)} for row in rows]
    floor = [row for row in curve if row["estimator"] == "mean"]
    left = _panel(rows, floor, "budget", "budget (share of pairs or of coordinates)")
    right = _panel(rows, floor, "work", "multiply-adds for pairs (share of those of exact scores)")
    return (left | right).properties(title="How far the patterns move at each budget")


def _panel(
    rows: list[dict[str, Any]], floor: list[dict[str, Any]], x: str, title: str
) -> alt.LayerChart:
    names = [name for name in ORDER if any(row["estimator"] == name for row in rows)]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X(
            f"{x}:Q",
            title=title,
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(format="%"),
        ),
        y=alt.Y("shown:Q", title="total variation, mean of heads", scale=alt.Scale(type="log")),
        color=alt.Color("estimator:N", scale=alt.Scale(domain=names, scheme="tableau10")),
        tooltip=[
            "estimator:N",
            "budget:Q",
            "work:Q",
            "pairs:Q",
            alt.Tooltip("total_variation:Q", title="total variation"),
            alt.Tooltip("score_error:Q", title="score error"),
        ],
    )
    points = base.mark_point(filled=True, size=50, opacity=1).encode(
        shape=alt.Shape("estimator:N", scale=alt.Scale(domain=names))
    )
    layers = base.mark_line(strokeWidth=1.5) + points
    if floor:
        level = alt.Chart(
            alt.Data(
                values=[{"y": floor[0]["total_variation"], "label": "mean of each key position"}]
            )
        ).encode(y="y:Q")
        text = level.mark_text(color="gray", align="left", baseline="bottom", dx=3, dy=-2).encode(
            x=alt.value(0), text="label:N"
        )
        layers += level.mark_rule(strokeDash=[4, 3], color="gray") + text
    return layers.properties(width=330, height=260)


def head_map(
    heads: Sequence[dict[str, Any]], value: str = "total_variation", title: str = ""
) -> alt.LayerChart:
    """A map of layers × heads, with one number of each head as colour and text."""
    rows = [
        {
            **{name: h[name] for name in ("stack", "layer", "head")},
            value: h[value],
            "label": f"{h[value]:.2f}".lstrip("0"),
        }
        for h in heads
    ]
    name = value.replace("_", " ")
    return labelled_map(rows, value, name, title or f"{name} of each head".capitalize())


def pattern_maps(rows: Sequence[dict[str, Any]], title: str) -> alt.HConcatChart:
    """The true pattern, the reconstructed one and the difference, with tokens on the axes.

    Tokens are data: their labels are fields, sorted by position, and never part of an expression.
    """
    cells = [
        {
            "query": row["query"],
            "key": row["key"],
            "query token": f"{row['query']} {visible(row['query_token'])}",
            "key token": f"{row['key']} {visible(row['key_token'])}",
            **{name: round(row[name], 5) for name in ("true", "reconstructed", "difference")},
        }
        for row in rows
    ]
    return pattern_charts(alt.Data(values=cells), 1 + max(row["query"] for row in rows)).properties(
        title=title
    )


def pattern_charts(data: alt.Data, n: int) -> alt.HConcatChart:
    """Three heat maps of n × n tokens.

    Rows of `data`: query, key, `query token`, `key token`, true, reconstructed, difference.
    """
    side = max(8, min(16, 384 // n)) * n
    weight = alt.Scale(type="sqrt", range=["#f7fbff", "#08306b"], domain=[0, 1])
    change = alt.Scale(scheme="redblue", domain=[-CHANGE, CHANGE], clamp=True, reverse=True)
    steps = alt.Legend(title="difference", values=[-CHANGE, 0, CHANGE])
    legends = {"true": None, "reconstructed": alt.Legend(title="weight"), "difference": steps}
    base = alt.Chart(data).mark_rect().properties(width=side, height=side)
    panels = [
        base.encode(
            x=_tokens_axis(alt.X, "key", True),
            y=_tokens_axis(alt.Y, "query", name == "true"),
            color=alt.Color(
                f"{name}:Q", scale=change if name == "difference" else weight, legend=legend
            ),
            tooltip=[alt.Tooltip(f"{side} token:N") for side in ("query", "key")]
            + [
                alt.Tooltip(f"{other}:Q", format=".4f")
                for other in ("true", "reconstructed", "difference")
            ],
        ).properties(title=name)
        for name, legend in legends.items()
    ]
    return alt.hconcat(*panels).resolve_scale(color="independent")


def _tokens_axis(channel: Any, side: str, labels: bool) -> Any:
    order = alt.EncodingSortField(field=side, op="min", order="ascending")
    axis = alt.Axis(labels=labels, ticks=labels, labelFontSize=8, labelLimit=90, labelOverlap=False)
    return channel(f"{side} token:N", sort=order, title=side, axis=axis)
