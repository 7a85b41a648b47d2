"""Pictures of explanations, as altair charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ..display import visible
from .verdict import CONTROL

if TYPE_CHECKING:
    from .result import Explanation

ORDERS = {
    "positive": "most relevant first: low is good",
    "negative": "least relevant first: high is good",
}


def token_map(found: Explanation) -> alt.Chart:
    """A map of methods × tokens, red for the target and blue against it.

    Each method has its own scale (`Explanation.levels`).
    """
    labels = [f"{i} {visible(token, 16)}" for i, token in enumerate(found.tokens)]
    rows = [
        {
            "position": i,
            "token": labels[i],
            "method": name,
            "shade": level / 10,
            "score": found.scores[name][i],
        }
        for name in found.methods
        for i, level in enumerate(found.levels(name))
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_rect()
        .encode(
            x=alt.X(
                "token:N", sort=labels, title=None, axis=alt.Axis(labelAngle=-60, labelLimit=140)
            ),
            y=alt.Y("method:N", sort=found.methods, title=None, axis=alt.Axis(labelLimit=220)),
            color=_shade(),
            tooltip=["token:N", "method:N", alt.Tooltip("score:Q", format=".3g")],
        )
        .properties(
            width=max(16 * len(labels), 60), height=22 * len(found.methods), title=found.name
        )
    )


def patch_maps(found: Explanation, columns: int = 5) -> alt.FacetChart:
    """A small map of the patches for every method, red for the target and blue against it."""
    assert found.grid is not None
    down, across = found.grid
    front = len(found.tokens) - down * across
    rows = []
    for name in found.methods:
        for i, level in enumerate(found.levels(name)[front:]):
            score = found.scores[name][front + i]
            rows.append(
                {
                    "method": name,
                    "row": i // across,
                    "column": i % across,
                    "shade": level / 10,
                    "score": score,
                }
            )
    cell = max(2, min(10, 160 // across))
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_rect()
        .encode(
            x=alt.X("column:O", axis=None),
            y=alt.Y("row:O", axis=None),
            color=_shade(),
            tooltip=["method:N", "row:O", "column:O", alt.Tooltip("score:Q", format=".3g")],
        )
        .properties(width=cell * across, height=max(cell * down, 16))
        .facet(alt.Facet("method:N", sort=found.methods, title=None), columns=columns)
        .properties(title=found.name)
    )


def _shade() -> alt.Color:
    scale = alt.Scale(domain=[-1, 0, 1], range=["#2c6fb3", "#f7f7f7", "#c8402c"])
    return alt.Color(
        "shade:Q",
        scale=scale,
        title=["share of the", "largest score"],
        legend=alt.Legend(format=".1f"),
    )


def deletion_chart(found: Explanation) -> Any:
    """The score of the target while tokens are taken away.

    One panel per order, one line per method.
    """
    names = [row["method"] for row in found.areas()]
    colours = [*SCHEME[: len([name for name in names if name != CONTROL])]]
    domain = [name for name in names if name != CONTROL] + [
        name for name in names if name == CONTROL
    ]
    scale = alt.Scale(domain=domain, range=colours + ["#8a8a8a"] * (len(domain) - len(colours)))
    panels = []
    for order, title in ORDERS.items():
        rows = [row for row in found.curves() if row["order"] == order]
        base = alt.Chart(alt.Data(values=rows)).encode(
            x=alt.X(
                "fraction:Q", title="share of the tokens taken away", axis=alt.Axis(format="%")
            ),
            y=alt.Y("score:Q", title=found.unit, scale=alt.Scale(zero=False)),
            color=alt.Color("method:N", scale=scale, legend=alt.Legend(labelLimit=220)),
            tooltip=[
                "method:N",
                alt.Tooltip("fraction:Q", format=".0%"),
                alt.Tooltip("score:Q", format=".3g"),
            ],
        )
        dash = alt.condition(f"datum.method == '{CONTROL}'", alt.value([4, 3]), alt.value([1, 0]))
        shape = alt.Shape("method:N", scale=alt.Scale(domain=domain))
        drawn = base.mark_line().encode(strokeDash=dash) + base.mark_point(
            filled=True, size=35, opacity=1
        ).encode(shape=shape)
        panels.append(drawn.properties(width=330, height=260, title=title))
    return alt.hconcat(*panels).properties(
        title=f"{found.name}: score of the target while tokens are taken away"
    )


SCHEME = (
    "#c8402c",
    "#e08a1e",
    "#4c9a5b",
    "#2c6fb3",
    "#7b5ea7",
    "#b8558f",
    "#17899a",
    "#8c6d31",
    "#5b7bd5",
    "#3d3d3d",
)
"""One colour per method; random order is grey."""
