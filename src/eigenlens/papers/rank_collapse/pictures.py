"""Pictures of the rank-collapse experiments."""

from __future__ import annotations

from typing import Any

from ..claims import Tables
from .circle_claims import AUTHORS
from .claims import CURVES, DEPTHS

LEAST = 1e-9
VARIANTS = ["SAN", "SAN+MLP", "SAN+skip", "full"]


def charts(tables: Tables) -> dict[str, Any]:
    """Every picture, by name."""
    return {
        "random": random_curves(tables),
        "pretrained": model_curves(tables),
        "paths": single_paths(tables),
        "accuracy": path_accuracy(tables),
        "circle": circles(tables),
    }


def _colour(title: str = "variant") -> Any:
    import altair as alt

    scale, legend = alt.Scale(domain=VARIANTS, scheme="tableau10"), alt.Legend(symbolOpacity=1)
    return alt.Color("variant:N", sort=VARIANTS, title=title, scale=scale, legend=legend)


def _log(title: str) -> Any:
    import altair as alt

    return alt.Y(
        "residual:Q",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format=".0e", tickCount=6),
        title=title,
    )


def random_curves(tables: Tables) -> Any:
    """Random starts: measured lines with the range of the seeds, published points."""
    import altair as alt

    measured = [
        {**row, **{key: max(row[key], LEAST) for key in ("residual", "low", "high")}}
        for row in tables["random curves"]
        if row["variant"] in VARIANTS
    ]
    deepest = max(row["depth"] for row in measured)
    published = [
        {"family": family, "variant": variant, "depth": depth, "residual": value}
        for (family, variant), values in CURVES.items()
        for depth, value in zip(DEPTHS, values)
        if value > 0 and depth <= deepest
    ]
    x = alt.X("depth:Q", axis=alt.Axis(tickMinStep=1, format="d"), title="blocks passed")
    panels = []
    for family in dict.fromkeys(row["family"] for row in measured):
        lines = alt.Chart(alt.Data(values=[row for row in measured if row["family"] == family]))
        band = lines.mark_area(opacity=0.2).encode(
            x=x, y=alt.Y("low:Q", scale=alt.Scale(type="log")), y2="high:Q", color=_colour()
        )
        line = lines.mark_line().encode(x=x, y=_log("relative residual"), color=_colour())
        points = alt.Chart(alt.Data(values=[row for row in published if row["family"] == family]))
        points = points.mark_point(filled=True, size=60).encode(
            x=x, y=_log("relative residual"), color=_colour()
        )
        panels.append(
            (band + line + points).properties(
                width=330, height=260, title=f"{family} at random start"
            )
        )
    return alt.hconcat(*panels).properties(
        title="Lines: measured, with the range of the seeds. Points: published."
    )


def model_curves(tables: Tables) -> Any:
    """Every pretrained stack: the four variants along depth."""
    import altair as alt

    rows = [
        {
            "place": f"{row['model']} {row['stack']}",
            "depth": row["depth"],
            "variant": name,
            "residual": max(row[name], LEAST),
        }
        for row in tables["models"]
        for name in VARIANTS
        if row[name] is not None
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point={"size": 15})
        .encode(
            x=alt.X("depth:Q", axis=alt.Axis(tickMinStep=1, format="d")),
            y=_log("relative residual"),
            color=_colour(),
        )
        .properties(width=220, height=160)
        .facet(
            facet=alt.Facet("place:N", title=None),
            columns=3,
            title="Pretrained models: how far the tokens are from one vector",
        )
        .resolve_scale(x="independent")
    )


def single_paths(tables: Tables) -> Any:
    """The residual of products of patterns along random paths, by length."""
    import altair as alt

    rows = [
        {**row, "place": f"{row['model']} {row['stack']}", "residual": max(row["residual"], 1e-16)}
        for row in tables["single paths"]
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("hops:Q", axis=alt.Axis(tickMinStep=1, format="d"), title="hops of the path"),
            y=_log("relative residual of the product"),
            color=alt.Color("place:N", title="model"),
            tooltip=["place:N", "hops:Q", alt.Tooltip("residual:Q", format=".2g")],
        )
        .properties(
            width=420, height=280, title="Relative residual of single paths by number of hops"
        )
    )


def path_accuracy(tables: Tables) -> Any:
    """Accuracy of the terms of each length, read out alone.

    The complete model and chance are drawn as rules.
    """
    import altair as alt

    rows = [
        {**row, "low": row["accuracy"] - row["spread"], "high": row["accuracy"] + row["spread"]}
        for row in tables["path accuracy"]
        if row["reading"] == "alone" and row["length"]
    ]
    panels = []
    for task in dict.fromkeys(row["task"] for row in rows):
        base = alt.Chart(alt.Data(values=[row for row in rows if row["task"] == task])).encode(
            x=alt.X("length:O", title="path length", axis=alt.Axis(labelAngle=0)),
            color=alt.Color("mode:N", title="paths"),
        )
        line = base.mark_line(point=True).encode(
            y=alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(domain=[0, 1]))
        )
        bar = base.mark_rule().encode(y="low:Q", y2="high:Q")
        rules = [
            row
            for row in tables["path accuracy"]
            if row["task"] == task and (row["mode"] == "model" or row["reading"] == "majority")
        ]
        rule = alt.Chart(alt.Data(values=rules)).mark_rule(strokeDash=[4, 3]).encode(y="accuracy:Q")
        panels.append((bar + line + rule).properties(width=220, height=200, title=task))
    return alt.hconcat(*panels).properties(
        title="Accuracy of paths of one length (dashed: the whole model, and the commonest answer)"
    )


def _training(run: dict[str, Any]) -> str:
    if run["settings"] == AUTHORS:
        return "authors' settings"
    return f"trained {'on' if run['jitter'] == 0 else 'near'} the circle"


def circles(tables: Tables) -> Any:
    """Where the two points go when the model's output is fed back to it.

    One run of each variant.
    """
    import altair as alt

    rows = [
        {
            "place": f"{run['variant']}, {_training(run)}, seed {run['seed']}",
            "point": str(point),
            "step": step,
            "x": place[0],
            "y": place[1],
        }
        for run in tables["trajectories"]
        if run["seed"] < 2
        for step, places in enumerate(run["trajectory"])
        for point, place in enumerate(places)
        if max(map(abs, place)) <= 1
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point={"size": 8})
        .encode(
            x=alt.X("x:Q", scale=alt.Scale(domain=[-0.5, 0.5], clamp=True)),
            y=alt.Y("y:Q", scale=alt.Scale(domain=[-0.5, 0.5], clamp=True)),
            color=alt.Color("point:N", title="arc"),
            order="step:Q",
        )
        .properties(width=220, height=220)
        .facet(
            facet=alt.Facet("place:N", title=None),
            columns=4,
            title="Two points on a circle when the output is fed back",
        )
    )
