"""Pictures of the weights of keys, and of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..line_chart import line_chart


def charts(tables: Tables) -> dict[str, Any]:
    """Weights of keys; keys explained away by layer; least weights of random scores; training."""
    import altair as alt

    models = list(dict.fromkeys(row["model"] for row in tables["histogram"]))
    spread = [
        _histogram(
            [row for row in tables["histogram"] if row["model"] == model], model, _size(tables)
        )
        for model in models
    ]
    layers = [
        _by_layer([row for row in tables["heads"] if row["model"] == model], model)
        for model in models
    ]
    largest = max(row["S"] for row in tables["random scores"])
    names = ("softmax", "doubly normalised", "Sinkhorn, 5")
    random = [
        {
            "normalised": name,
            "scale": row["scale of scores"],
            "least": math.log10(max(row[f"{name}: least · S"], 1e-300)),
        }
        for name in names
        for row in tables["random scores"]
        if row["S"] == largest
    ]
    training = [
        line_chart(
            [row for row in tables["training curves"] if row["task"] == task],
            "step",
            "loss",
            "run",
            title=task,
            axis_titles=("step", "held-out nats"),
        )
        for task in dict.fromkeys(row["task"] for row in tables["training curves"])
    ]
    return {
        "keys": alt.concat(*spread, columns=2),
        "layers": alt.concat(*layers, columns=2),
        "random": line_chart(
            random,
            "scale",
            "least",
            "normalised",
            title=f"Random scores, {largest} keys",
            axis_titles=("standard deviation of scores", "log10 of the least weight times S"),
            log=("x",),
        ),
        "training": alt.hconcat(*training),
    }


def _size(tables: Tables) -> int:
    return int(tables["models"][0]["S"])


def _histogram(rows: Sequence[dict[str, Any]], model: str, S: int) -> Any:
    """The share of keys by the logarithm of their weight, with a line at the guarantee."""
    import altair as alt

    seen = [row for row in rows if row["share"] > 0]
    base = alt.Chart(alt.Data(values=seen)).encode(
        x=alt.X(
            "log10 of weight:Q",
            title="log10 of a key's weight",
            scale=alt.Scale(zero=False, nice=False),
        ),
        y=alt.Y(
            "share:Q",
            title="share of keys",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format=".0e"),
        ),
        color=alt.Color("attention:N", sort=["softmax", "doubly normalised"], title="normalised"),
    )
    bound = (
        alt.Chart(alt.Data(values=[{"x": math.log10(1 / S)}]))
        .mark_rule(strokeDash=[4, 3], color="black")
        .encode(x="x:Q")
    )
    lines = base.mark_line(strokeWidth=1.5) + base.mark_circle(size=25, opacity=1)
    return (lines + bound).properties(width=320, height=200, title=f"{model} (dashed: 1/S)")


def _by_layer(rows: Sequence[dict[str, Any]], model: str) -> Any:
    """A circle for each head, its share of keys below 1/S."""
    import altair as alt

    return (
        alt.Chart(alt.Data(values=list(rows)))
        .mark_circle(size=35, opacity=0.6)
        .encode(
            x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("below 1/S:Q", title="share of keys below 1/S", axis=alt.Axis(format="%")),
            color=alt.Color(
                "attention:N", sort=["softmax", "doubly normalised"], title="normalised"
            ),
            xOffset=alt.XOffset("attention:N", sort=["softmax", "doubly normalised"]),
            tooltip=["layer:O", "head:O", "attention:N", alt.Tooltip("below 1/S:Q", format=".2%")],
        )
        .properties(width=320, height=200, title=f"{model}: heads by layer")
    )
