"""Pictures of the components of one input: heads beside their weights, and growth with length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...display import percent
from ...spectra.within import IN_WORDS
from ...stats.within import SHARES
from ..claims import Tables
from ..line_chart import line_chart


def charts(tables: Tables) -> dict[str, Any]:
    """Heads and growth side by side; components by the share of the energy."""
    import altair as alt

    both = alt.hconcat(_heads(tables["heads"]), _growth(tables["growth"]))
    return {
        "within-one-input": both.resolve_scale(color="independent"),
        "within-controls": _controls(tables["spectra"]),
    }


def _heads(rows: Sequence[dict[str, Any]]) -> Any:
    """A tick per head: components for 90 % of the energy as a share of all."""
    import altair as alt

    names = {
        IN_WORDS["centred"]: "row-centred scores of one input",
        IN_WORDS["weights"]: "weights W_QK",
    }
    data = [{**row, "share": row["90 %"] / row["d"], "of": names[row["of"]]} for row in rows]
    order = list(dict.fromkeys(row["model"] for row in rows))
    return (
        alt.Chart(alt.Data(values=data))
        .mark_tick(opacity=0.4, thickness=1.5)
        .encode(
            x=alt.X("share:Q", title="share of a head's components", axis=alt.Axis(format=".0%")),
            y=alt.Y("model:N", sort=order, title=None),
            yOffset=alt.YOffset("of:N", sort=list(names.values())),
            color=alt.Color(
                "of:N",
                title=None,
                sort=list(names.values()),
                scale=alt.Scale(range=["#2f7f9f", "#7f7f7f"]),
                legend=alt.Legend(orient="bottom", symbolOpacity=1, labelLimit=240),
            ),
            tooltip=["model:N", "stack:N", "layer:Q", "head:Q", "of:N", "90 %:Q", "d:Q"],
        )
        .properties(title="Components for 90 % of the energy, every head", width=360, height=260)
    )


def _growth(rows: Sequence[dict[str, Any]]) -> Any:
    model = rows[0]["model"]
    lengths = sorted({row["tokens"] for row in rows})
    return line_chart(
        [{**row, "components": row["90 %"]} for row in rows],
        "tokens",
        "components",
        "inputs",
        title=f"{model}: row-centred scores by length, median head of {rows[0]['heads']}",
        axis_titles=("tokens of the input", f"components for 90 % (of {rows[0]['d']})"),
        log=("x",),
        band=("low", "high"),
        ticks=lengths,
    )


def _controls(rows: Sequence[dict[str, Any]]) -> Any:
    """Row-centred scores of real, shuffled and random inputs along the share of the energy."""
    import altair as alt

    found = [row for row in rows if row["of"] == IN_WORDS["centred"]]
    panels = []
    for model in dict.fromkeys(row["model"] for row in found):
        points = [
            {"inputs": row["inputs"], "share": 100 * share, "components": row[percent(share)]}
            for row in found
            if row["model"] == model
            for share in SHARES
        ]
        titles = ("% of the energy", "components, median head")
        panels.append(
            line_chart(
                points,
                "share",
                "components",
                "inputs",
                title=model,
                axis_titles=titles,
                width=180,
                height=150,
            )
        )
    return alt.concat(*panels, columns=3)
