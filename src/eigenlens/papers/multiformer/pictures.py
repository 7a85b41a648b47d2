"""Pictures of head relevance and of the miniature."""

from __future__ import annotations

from typing import Any

from ..claims import Tables
from .encoders import KINDS


def charts(tables: Tables) -> dict[str, Any]:
    import altair as alt

    from ...spectra.plots import labelled_map

    maps = {}
    for model in dict.fromkeys(row["model"] for row in tables["maps"]):
        rows = [
            {**row, "label": f"{100 * row['relevance']:.0f}"}
            for row in tables["maps"]
            if row["model"] == model
        ]
        title = (
            f"Relevance of the heads of {model}, in hundredths"
            f" ({100 / len({r['head'] for r in rows}):.1f}: all alike)"
        )
        maps[f"map-{model}"] = labelled_map(rows, "relevance", "relevance", title)
    runs = [
        {key: row[key] for key in ("heads", "seed", "accuracy", "evenness")}
        for row in tables["runs"]
    ]
    wide = alt.Scale(zero=False, padding=12)
    points = (
        alt.Chart(alt.Data(values=runs))
        .mark_point(filled=True, size=90, opacity=0.9)
        .encode(
            x=alt.X(
                "evenness:Q",
                title="evenness of head relevance (1: all alike)",
                scale=wide,
                axis=alt.Axis(tickCount=6),
            ),
            y=alt.Y("accuracy:Q", scale=wide),
            color=alt.Color(
                "heads:N",
                sort=list(KINDS),
                scale=alt.Scale(scheme="tableau10"),
                title="heads of each layer",
            ),
            shape=alt.Shape("seed:N", title="seed"),
        )
        .properties(
            width=380, height=280, title="Repeated letters: accuracy by evenness of head relevance"
        )
    )
    return {**maps, "miniature": points}
