"""Pictures of sinks and spikes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..line_chart import line_chart

MAGNITUDES = {"largest": "largest", "second": "second", "third": "third", "median": "median"}
SHARES = {"sink rate": "heads and inputs with a sink", "sink strength": "attention that it gets"}


def charts(tables: Tables) -> dict[str, Any]:
    """Magnitudes and sinks along depth; every head; amplifiers; windows; training."""
    import altair as alt

    models = list(dict.fromkeys(row["model"] for row in tables["layers"]))
    own = {name: [row for row in tables["layers"] if row["model"] == name] for name in models}
    return {
        "sinks": (
            alt.hconcat(*(_depth(rows, name) for name, rows in own.items())).resolve_scale(
                color="independent"
            )
        ),
        "heads": (
            alt.hconcat(
                *(
                    _heads([row for row in tables["heads"] if row["model"] == name], name)
                    for name in models
                )
            ).resolve_scale(color="shared")
        ),
        "amplifiers": alt.hconcat(*(_amplifiers(rows, name) for name, rows in own.items())),
        "windows": _windows(tables["windows"]),
        "training": _training(tables["training"]),
    }


def _depth(rows: Sequence[dict[str, Any]], name: str) -> Any:
    import altair as alt

    sizes = [
        {"layer": row["layer"], "channel": words, "magnitude": row[key]}
        for key, words in MAGNITUDES.items()
        for row in rows
    ]
    upper = line_chart(
        sizes,
        "layer",
        "magnitude",
        "channel",
        title=f"{name}: magnitudes behind each block",
        log=("y",),
        axis_titles=("layer", "mean over inputs"),
        width=340,
        height=220,
    )
    shares = [
        {"layer": row["layer"], "share of": words, "value": row[key]}
        for key, words in SHARES.items()
        for row in rows
    ]
    lower = line_chart(
        shares,
        "layer",
        "value",
        "share of",
        title=f"{name}: the first token as a sink",
        axis_titles=("layer", "share"),
        width=340,
        height=140,
    )
    return alt.vconcat(upper, lower).resolve_scale(color="independent")


def _heads(rows: Sequence[dict[str, Any]], name: str) -> Any:
    import altair as alt

    cells = (
        alt.Chart(alt.Data(values=list(rows)))
        .mark_rect()
        .encode(
            x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("layer:O", title="layer"),
            color=alt.Color(
                "strength:Q",
                title="α₁",
                scale=alt.Scale(domain=[0, 1], range=["#eef3f7", "#20466e"]),
            ),
            tooltip=[
                "layer:O",
                "head:O",
                alt.Tooltip("strength:Q", format=".3f"),
                alt.Tooltip("rate:Q", format=".2f"),
            ],
        )
    )
    return cells.properties(
        width=alt.Step(20), height=alt.Step(11), title=f"{name}: attention to the first token"
    )


def _amplifiers(rows: Sequence[dict[str, Any]], name: str) -> Any:
    import altair as alt

    data = [
        {
            "layer": row["layer"],
            "gain": abs(row["λ₁"]),
            "channel": str(row["amplified channel"]),
            "top channel": (
                "is the one that spikes"
                if row["amplified channel"] == row["largest channel"]
                else "is another"
            ),
        }
        for row in rows
        if row["λ₁"]
    ]
    bars = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X("layer:O", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("gain:Q", title="|λ₁|", scale=alt.Scale(type="log")),
        color=alt.Color(
            "top channel:N",
            title="its channel",
            scale=alt.Scale(range=["#c44e52", "#8fa5b8"]),
            sort=["is the one that spikes", "is another"],
        ),
        tooltip=["layer:O", "channel:N", alt.Tooltip("gain:Q", format=".3g")],
    )
    return bars.mark_circle(size=90, opacity=1).properties(
        width=alt.Step(16), height=200, title=f"{name}: amplifier of each MLP"
    )


def _windows(rows: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    order = list(dict.fromkeys(row["keys"] for row in rows))
    panels = []
    for text in dict.fromkeys(row["text"] for row in rows):
        base = alt.Chart(alt.Data(values=[row for row in rows if row["text"] == text]))
        points = base.mark_circle(size=60, opacity=0.7).encode(
            x=alt.X(
                "loss:Q", title="nats per token, one point per text", scale=alt.Scale(zero=False)
            ),
            y=alt.Y("keys:N", title=None, sort=order, axis=alt.Axis(labelLimit=260)),
            color=alt.Color("model:N"),
            tooltip=["model:N", "keys:N", alt.Tooltip("loss:Q", format=".3f")],
        )
        title = f"A window of {rows[0]['window']} keys, text: {text}"
        panels.append(points.properties(width=380, height=130, title=title))
    return alt.vconcat(*panels)


def _training(rows: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    data = [
        {"attention": row["attention"], "seed": row["seed"], "strength": row["sink strength"]}
        for row in rows
    ]
    points = (
        alt.Chart(alt.Data(values=data))
        .mark_circle(size=90, opacity=0.9)
        .encode(
            x=alt.X(
                "strength:Q", title="mean attention to the first token", scale=alt.Scale(zero=True)
            ),
            y=alt.Y(
                "attention:N",
                title=None,
                sort=list(dict.fromkeys(row["attention"] for row in rows)),
                axis=alt.Axis(labelLimit=240),
            ),
            color=alt.Color("seed:N"),
            tooltip=["attention:N", "seed:N", alt.Tooltip("strength:Q", format=".3f")],
        )
    )
    return points.properties(width=380, height=160, title="Trained small: one point per model")
