"""The six dimensions of every head as a picture: a tick per head, a point at the median."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..display import percent
from ..stats.within import SHARES
from .side_by_side import MEASURES, measured

if TYPE_CHECKING:
    from .result import Study

COLOURS = {"weights": "#7f7f7f", "one input": "#2f7f9f", "over inputs": "#c0504d"}
KINDS = {
    ("within", True): "weights",
    ("within", False): "one input",
    ("rows", False): "over inputs",
    ("matrices", False): "over inputs",
}


def dimension_chart(study: Study, share: float = 0.9) -> Any:
    """Draw what each measure needs for `share` of energy or variance (altair, logarithmic).

    Heads that need more than was kept are drawn at that limit, and a median there is hollow: it is
    a lower bound.
    """
    import altair as alt

    heads, medians = _drawn(study, share)
    order = [m.words for m in MEASURES]
    known = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    colour = alt.Color("kind:N", scale=known, legend=None)
    base = alt.Chart(alt.Data(values=heads)).encode(
        x=alt.X(
            "dimension:Q",
            title=f"dimensions for {percent(share)} (a tick per head, a point at the median)",
            scale=alt.Scale(type="log", base=2, domainMin=1, nice=False),
            axis=alt.Axis(format=",d"),
        ),
        y=alt.Y("measure:N", sort=order, title=None, axis=alt.Axis(labelLimit=300)),
        color=colour,
    )
    ticks = base.mark_tick(opacity=0.35, thickness=1.5, size=16).encode(
        tooltip=["head:N", "measure:N", alt.Tooltip("text:N", title="dimensions")]
    )
    points = [
        base.mark_point(size=90, strokeWidth=2, opacity=1, filled=not beyond)
        .encode(tooltip=["measure:N", alt.Tooltip("text:N", title="median head")])
        .properties(data=alt.Data(values=rows))
        for beyond in (False, True)
        if (rows := [row for row in medians if row["beyond"] == beyond])
    ]
    title = "What is low-dimensional? One input, the weights, and all inputs"
    return alt.layer(ticks, *points).properties(title=title, width=370, height=190)


def _drawn(study: Study, share: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row per head and measure, and a row per measure with the median of the heads."""
    heads, medians = [], []
    for measure in MEASURES:
        found = list(measured(study, measure))
        if not found:
            continue
        about = {"measure": measure.words, "kind": KINDS[measure.source, measure.what == "weights"]}
        limit, values = max(kept for _, _, kept, _ in found), []
        for at, _, _, dimensions in found:
            value = dimensions[SHARES.index(share)]
            values.append(np.inf if value is None else float(value))
            heads.append({"head": study.labels(at), **about, **_shown(values[-1], limit)})
        medians.append({**about, **_shown(float(np.median(values)), limit)})
    return heads, medians


def _shown(value: float, limit: int) -> dict[str, Any]:
    beyond = bool(np.isinf(value))
    shown = limit if beyond else value
    return {
        "dimension": max(shown, 1),
        "text": f">{limit}" if beyond else f"{value:g}",
        "beyond": beyond,
    }
