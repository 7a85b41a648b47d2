"""Pictures of eigenvalues, stable ranks, gradients and the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Tables
from ..line_chart import line_chart
from .claims import rows_with
from .models import MODELS

RANKED = {
    "width": ("T", "stable rank", "after one layer", ("tokens T", "stable rank"), ("x", "y")),
    "depth": ("depth", "stable rank", "along depth", ("layer", "stable rank"), ("y",)),
    "gradients": (
        "T",
        "norm",
        "gradient of the first weights",
        ("tokens T", "norm of the gradient"),
        ("x", "y"),
    ),
}
"""Tables of all variants as they are drawn: columns, title, names of the axes, logarithmic axes."""


def charts(tables: Tables) -> dict[str, Any]:
    """Eigenvalues; stable rank by T and by depth; gradients; the encoder."""
    import altair as alt

    rows = {
        name: [{**row, "variant": row["variant"].replace("A⊥", "A − 1/T")} for row in tables[name]]
        for name in RANKED
    }
    drawn = {
        name: alt.hconcat(
            *(
                line_chart(
                    rows_with(rows[name], model=model),
                    x,
                    y,
                    "variant",
                    title=f"{model}: {title}",
                    axis_titles=axes,
                    log=log,
                )
                for model in MODELS
            )
        )
        for name, (x, y, title, axes, log) in RANKED.items()
    }
    seen = [
        {
            **row,
            "which": (
                f"{row['weights']}{'' if row['start'] is None else ' ' + str(row['start'])},"
                f" {row['attention']}"
            ),
        }
        for row in tables["encoder"]
    ]
    encoder = [
        line_chart(
            seen,
            "depth",
            key,
            "which",
            title=f"Encoder: {key}",
            axis_titles=("block", key),
            log=("y",) if "rank" in key else (),
        )
        for key in ("stable rank", "residual", "cosine")
    ]
    return {
        "rank": alt.vconcat(drawn["width"], drawn["depth"]),
        "eigenvalues": alt.vconcat(*(_cloud(tables["cloud"], model) for model in MODELS)),
        "gradients": drawn["gradients"],
        "encoder": alt.hconcat(*encoder),
    }


def _cloud(rows: Sequence[dict[str, Any]], model: str) -> Any:
    """The eigenvalues of one A for each T, on the same axes."""
    import altair as alt

    some = rows_with(rows, model=model)
    reach = 1.1 * max(abs(row["imaginary"]) for row in some)
    panels = []
    for T in dict.fromkeys(row["T"] for row in some):
        chart = alt.Chart(alt.Data(values=rows_with(some, T=T))).mark_circle(size=9, opacity=0.6)
        panels.append(
            chart.encode(
                x=alt.X("real:Q", title="real", scale=alt.Scale(domain=[-reach, 1.05])),
                y=alt.Y("imaginary:Q", title="imaginary", scale=alt.Scale(domain=[-reach, reach])),
            ).properties(
                width=300,
                height=300 * 2 * reach / (1.05 + reach),
                title=f"{model}: eigenvalues, T = {T}",
            )
        )
    return alt.hconcat(*panels)
