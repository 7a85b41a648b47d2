"""The pictures: distance to the optimum by number of heads, certificates, clusters of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..line_chart import line_chart

LEAST = 1e-12
"""Distances below this are rounding, and drawn at it."""


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    both = alt.hconcat(_counts(tables["heads"]), _rank(tables["path"])).resolve_scale(
        color="independent"
    )
    drawn = {"convex-duality": both}
    drawn["certificates"] = line_chart(
        tables["history"],
        "step",
        "gap",
        "block",
        title="Certificate of each block: relative duality gap",
        axis_titles=("step", "gap"),
        log=("x", "y"),
        width=380,
        height=260,
    )
    bars = alt.hconcat(_purity(tables["clusters"]), _flow(tables["flow"])).resolve_scale(
        color="independent"
    )
    drawn["clusters"] = alt.vconcat(_tokens(tables["pictures"]), bars).resolve_scale(
        color="independent"
    )
    return drawn


def _counts(rows: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    data = [{**row, "off": max(row["off"], LEAST), "set": str(row["set"])} for row in rows]
    return (
        alt.Chart(alt.Data(values=data))
        .mark_point(filled=True, size=55, opacity=0.7)
        .encode(
            x=alt.X("heads:O", title="heads m", axis=alt.Axis(labelAngle=0)),
            xOffset="set:N",
            y=alt.Y(
                "off:Q",
                title="relative distance to the optimum",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format=".0e"),
            ),
            color=alt.Color("set:N", title="data set"),
            tooltip=["heads:O", "set:N", "start:O", alt.Tooltip("off:Q", format=".2e")],
        )
        .properties(
            title=f"Trained with m heads (a point per start; at {LEAST:.0e}: below it)",
            width=360,
            height=250,
        )
    )


def _rank(path: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    base = alt.Chart(alt.Data(values=list(path))).encode(
        x=alt.X(
            "β / β_max:Q",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(values=[0.002, 0.01, 0.05, 0.2, 1], format="~g"),
        ),
        y=alt.Y("heads:Q", title="heads of the optimum", axis=alt.Axis(tickMinStep=1, format="d")),
    )
    return (base.mark_line() + base.mark_circle(size=45, opacity=1)).properties(
        title="The larger β, the fewer heads", width=260, height=250
    )


def _tokens(shown: Sequence[dict[str, Any]]) -> Any:
    """Pictures with the cluster of every patch."""
    import altair as alt

    panels = []
    for number, one in enumerate(shown):
        side, grid = len(one["pixels"]), round(len(one["clusters"]) ** 0.5)
        step = side / grid
        pixels = [{"x": 0, "x2": side, "y": 0, "y2": side, "ink": 0}] + [
            # no gap shows between two
            {"x": x, "x2": min(x + 1.1, side), "y": y, "y2": min(y + 1.1, side), "ink": ink}
            for y, line in enumerate(one["pixels"])
            for x, ink in enumerate(line)
            if ink > 0
        ]
        patches = [
            {
                "x": step * (i % grid),
                "x2": step * (i % grid + 1),
                "y": step * (i // grid),
                "y2": step * (i // grid + 1),
                "cluster": cluster,
            }
            for i, cluster in enumerate(one["clusters"])
        ]
        x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, side], nice=False))
        y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[side, 0], nice=False))
        ink = alt.Color(
            "ink:Q", scale=alt.Scale(scheme="greys", domain=[0, 255], reverse=True), legend=None
        )
        key = (
            alt.Legend(title="cluster", columns=2, symbolOpacity=1)
            if number == min(3, len(shown) - 1)
            else None
        )
        hue = alt.Color(
            "cluster:O", scale=alt.Scale(scheme="tableau10", domain=list(range(10))), legend=key
        )
        base = (
            alt.Chart(alt.Data(values=pixels))
            .mark_rect(strokeWidth=0)
            .encode(x=x, y=y, x2="x2", y2="y2", color=ink)
        )
        over = (
            alt.Chart(alt.Data(values=patches))
            .mark_rect(opacity=0.5, stroke="white", strokeWidth=0.5)
            .encode(x=x, y=y, x2="x2", y2="y2", color=hue)
        )
        both = alt.layer(base, over).resolve_scale(color="independent")
        panels.append(both.properties(width=112, height=112, title=one["class"]))
    return alt.concat(*panels, columns=4).properties(
        title="Clusters of the patches, by their rows of the learned map"
    )


def _purity(rows: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    order = list(dict.fromkeys(row["grouped by"] for row in rows))
    data = [{**row, "draw": str(row["draw"])} for row in rows]
    return (
        alt.Chart(alt.Data(values=data))
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("purity:Q", scale=alt.Scale(zero=False), title="purity by class"),
            y=alt.Y("grouped by:N", sort=order, title=None),
            color=alt.Color("draw:N", title="draw"),
        )
        .properties(width=250, height=150, title="Held-out tokens in 10 clusters")
    )


def _flow(rows: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    return (
        alt.Chart(alt.Data(values=list(rows)))
        .mark_rect()
        .encode(
            x=alt.X("from:O", title="from cluster", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("cluster:O", title="to cluster"),
            color=alt.Color("share:Q", scale=alt.Scale(scheme="blues"), title="share"),
        )
        .properties(width=200, height=200, title="What clusters get from each other")
    )
