"""Pictures of eigenspectra, of localisation, and of training."""

from __future__ import annotations

from typing import Any

from ..claims import Tables
from ..line_chart import line_chart


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    toy = [{**row, "tr W": f"{row['trace']:g}"} for row in tables["toy"]]
    lines = line_chart(
        toy,
        "variance",
        "distance",
        "tr W",
        title="How far attention looks back on AR(1) tokens",
        band=("distance low", "distance high"),
        axis_titles=("variance of the eigenvalues", "mean distance looked back"),
    )
    points = (
        alt.Chart(alt.Data(values=list(tables["heads"])))
        .mark_circle(size=45, opacity=0.8)
        .encode(
            x=alt.X("mean:Q", title="mean eigenvalue, tr W / d"),
            y=alt.Y(
                "distance:Q",
                title="mean distance, uniform attention = 1",
                scale=alt.Scale(zero=True),
            ),
            color=alt.Color("model:N", scale=alt.Scale(scheme="tableau10")),
            tooltip=["model:N", "layer:Q", "head:Q", "mean:Q", "variance:Q", "distance:Q"],
        )
        .properties(
            title="How far heads of loaded models look, by mean eigenvalue", width=320, height=240
        )
    )
    trained = [
        {
            "penalty": f"{row['penalty']:g}",
            "value": row[key],
            "low": row[f"{key} low"],
            "high": row[f"{key} high"],
            "of": title,
        }
        for row in tables["training"]
        for key, title in (
            ("perplexity", "perplexity"),
            ("entropy", "entropy of attention rows (1: uniform)"),
        )
    ]
    base = alt.Chart(alt.Data(values=trained)).encode(
        x=alt.X("penalty:N", title="strength of the penalty", sort=None)
    )
    marks = base.mark_rule().encode(
        y=alt.Y("low:Q", title=None, scale=alt.Scale(zero=False)), y2="high:Q"
    ) + base.mark_circle(size=60, opacity=1).encode(
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
    )
    training = marks.properties(width=200, height=240).facet(
        column=alt.Column("of:N", title="Language models of bytes trained with the penalty")
    )
    return {
        "qk-eigenspectrum": alt.hconcat(lines, points).resolve_scale(color="independent"),
        "qk-training": training.resolve_scale(y="independent"),
    }
