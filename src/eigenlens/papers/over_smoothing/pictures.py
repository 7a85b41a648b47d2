"""Pictures of similarity along depth, of the bound, and of the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..line_chart import line_chart
from .models import READ_OUTS


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    named = [{**row, "encoder": f"{row['model']}, {row['state']}"} for row in tables["depth"]]
    depth = line_chart(
        named,
        "depth",
        "similarity",
        "encoder",
        title="Mean cosine of two tokens along depth",
        axis_titles=("blocks passed", "mean cosine of two tokens"),
        band=("low", "high"),
        width=340,
        height=230,
    )
    model, state = (tables["blocks"][0][key] for key in ("model", "state"))
    names = {
        "ratio": "d_M behind / before",
        "sigma": "σ₁σ₂",
        "least v": "v, least of the inputs",
        "least sharp": "v, sharper",
    }
    lines = [
        {"layer": row["layer"], "value": row[key], "what": what}
        for row in tables["layers"]
        if (row["model"], row["state"]) == (model, state)
        for key, what in names.items()
    ]
    one = (
        alt.Chart(alt.Data(values=[{"value": 1}])).mark_rule(strokeDash=[4, 3]).encode(y="value:Q")
    )
    bounds = line_chart(
        lines,
        "layer",
        "value",
        "what",
        title=f"{model}: what the bound says of each block (dashed: 1)",
        axis_titles=("block", "factor"),
        log=("y",),
        width=380,
        height=260,
    )
    return {"depth": depth, "bound": bounds + one, "fusion": _fusion_chart(tables["fusion"])}


def _fusion_chart(rows: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    panels = []
    for model in dict.fromkeys(row["model"] for row in rows):
        base = alt.Chart(alt.Data(values=[row for row in rows if row["model"] == model])).encode(
            x=alt.X("read-out:N", sort=list(READ_OUTS), title=None, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("accuracy:Q", scale=alt.Scale(zero=False, padding=8)),
        )
        points = base.mark_circle(size=50, opacity=0.6).encode(
            color=alt.Color("seed:N", title="seed")
        )
        mean = base.mark_tick(color="black", width=30, thickness=2).encode(
            y=alt.Y("mean(accuracy):Q", title="accuracy")
        )
        panels.append((points + mean).properties(width=260, height=220, title=model))
    return alt.hconcat(*panels).properties(
        title="Accuracy when read from the last layer, or from all (bar: mean of the seeds)"
    )
