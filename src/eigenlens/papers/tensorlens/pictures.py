"""Pictures of the operator: maps of tokens, deletion curves, T beside J, and costs."""

from __future__ import annotations

from typing import Any

from ..claims import Tables
from ..line_chart import line_chart
from .comparison import ORDER
from .maps import MAPS


def charts(tables: Tables) -> dict[str, Any]:
    """Altair charts by name."""
    return {
        "maps": _maps(tables),
        "deletion": _deletion(tables),
        "jacobian": _jacobian(tables),
        "cost": _cost(tables),
    }


def _maps(tables: Tables) -> Any:
    """Shares of input tokens in output tokens, a panel for each map and model."""
    import altair as alt

    lines = []
    for model in dict.fromkeys(row["model"] for row in tables["maps"]):
        panels = [_heat(tables, model, kind) for kind in MAPS]
        lines.append(alt.hconcat(*panels, spacing=18).resolve_scale(color="independent"))
    return alt.vconcat(*lines, spacing=18).resolve_scale(color="independent")


def _heat(tables: Tables, model: str, kind: str) -> Any:
    import altair as alt

    rows = [row for row in tables["maps"] if (row["model"], row["map"]) == (model, kind)]
    names = {row["input"]: row["input token"] for row in rows}
    label = f"{list(names.values())!r}[datum.value]"
    most = max(abs(row["share"]) for row in rows)
    signed = min(row["share"] for row in rows) < 0
    scale = (
        alt.Scale(scheme="redblue", reverse=True, domain=[-most, most])
        if signed
        else alt.Scale(scheme="blues", domain=[0, most])
    )
    axis = {"labelExpr": label, "labelOverlap": False}
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_rect()
        .encode(
            x=alt.X("input:O", title="input token j", axis=alt.Axis(**axis, labelAngle=-60)),
            y=alt.Y("output:O", title="output token i", axis=alt.Axis(**axis)),
            color=alt.Color(
                "share:Q", title="share", scale=scale, legend=alt.Legend(gradientLength=120)
            ),
            tooltip=["output token:N", "input token:N", alt.Tooltip("share:Q", format=".3f")],
        )
        .properties(width=15 * len(names), height=15 * len(names), title=f"{model}: {kind}")
    )


def _deletion(tables: Tables) -> Any:
    import altair as alt

    place = {method: i for i, method in enumerate(ORDER)}
    rows = sorted(tables["curves"], key=lambda row: place[row["method"]])
    titles = {
        "positive": "most relevant first: lower is better",
        "negative": "least relevant first: higher is better",
    }
    panels = [
        line_chart(
            [row for row in rows if row["order"] == order],
            "fraction",
            "probability",
            "method",
            title=title,
            axis_titles=("fraction of the tokens taken away", "probability of the class"),
            height=260,
        )
        for order, title in titles.items()
    ]
    return alt.hconcat(*panels).resolve_scale(y="shared")


def _jacobian(tables: Tables) -> Any:
    import altair as alt

    rows = [{**row, "name": f"{row['model']}, {row['weights']}"} for row in tables["jacobian"]]
    order = list(dict.fromkeys(row["name"] for row in rows))
    panels: list[Any] = []
    for column, title in (
        ("‖T−J‖/‖J‖", "how far T is from J"),
        ("‖JX+B−Y‖/‖Y‖", "how far J·X + B is from the output"),
    ):
        data = [{"name": row["name"], "value": row[column]} for row in rows]
        points = (
            alt.Chart(alt.Data(values=data))
            .mark_circle(size=60, opacity=0.7)
            .encode(
                x=alt.X("value:Q", title=column, scale=alt.Scale(domainMin=0)),
                y=alt.Y(
                    "name:N",
                    sort=order,
                    title=None,
                    axis=alt.Axis(labelLimit=260, labels=not panels),
                ),
            )
            .properties(width=300, height=20 * len(order), title=title)
        )
        panels.append(points)
    return alt.hconcat(*panels)


def _cost(tables: Tables) -> Any:
    import altair as alt

    times = [
        {"tokens": row["tokens"], "what": key.removesuffix(" / forward"), "ratio": row[key]}
        for row in tables["cost"]
        for key in row
        if key.endswith(" / forward")
    ]
    memory = [
        {"tokens": row["tokens"], "what": what, "MB": row[f"{what} MB"]}
        for row in tables["cost"]
        for what in ("whole", "graph", "forward", "row")
    ]
    left = line_chart(
        times,
        "tokens",
        "ratio",
        "what",
        title="time over a forward pass",
        axis_titles=("tokens", "forward passes"),
    )
    right = line_chart(
        memory,
        "tokens",
        "MB",
        "what",
        title="peak memory",
        axis_titles=("tokens", "MB"),
        log=("x", "y"),
    )
    return alt.hconcat(left, right).resolve_scale(color="independent")
