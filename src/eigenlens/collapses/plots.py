"""Pictures of a collapse run, as altair charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ..spectra.plots import integer_axis, labelled_map
from ..stats.rounding import describe_residual

if TYPE_CHECKING:
    from .result import Collapse

LEAST = 1e-16
"""Smaller values are drawn at this one: a logarithmic axis has no zero."""


def residual_curves(run: Collapse, metric: str = "residual", tokens: str = "all") -> Any:
    """A metric of every variant along depth, on a logarithmic axis, one panel per stack.

    Bands are the 95 % interval over inputs, cut off at a tenth of the mean.
    """
    rows = [
        {
            "variant": name,
            "stack": stack,
            "depth": point["depth"],
            "mean": max(point["mean"], LEAST),
            "low": max(_or(point["low"], point["mean"]), point["mean"] / 10, LEAST),
            "high": max(_or(point["high"], point["mean"]), LEAST),
            "shown": describe_residual(point["mean"], run.floor, ".3g"),
        }
        for name, depth in run.curves.items()
        for stack in depth.stacks
        for point in depth.curve(metric, stack, tokens)
    ]
    stacks = list(dict.fromkeys(row["stack"] for row in rows))
    panels = []
    for stack in stacks:
        data = alt.Data(values=[row for row in rows if row["stack"] == stack])
        base = alt.Chart(data).encode(
            x=alt.X(
                "depth:Q",
                axis=integer_axis(max((row["depth"] for row in rows), default=0)),
                title="blocks passed",
            )
        )
        scale = alt.Scale(domain=list(run.curves), scheme="tableau10")
        colour = alt.Color(
            "variant:N", scale=scale, title="variant", legend=alt.Legend(symbolOpacity=1)
        )
        axis = alt.Axis(format=".0e", tickCount=8)
        curve = base.encode(
            y=alt.Y(
                "mean:Q",
                scale=alt.Scale(type="log"),
                axis=axis,
                title=f"relative {metric}".replace("_", " "),
            ),
            color=colour,
            tooltip=[
                "variant:N",
                "depth:Q",
                alt.Tooltip("shown:N", title=metric.replace("_", " ")),
            ],
        )
        shape = alt.Shape("variant:N", scale=alt.Scale(domain=list(run.curves)), title="variant")
        line = curve.mark_line() + curve.mark_point(filled=True, size=40, opacity=1).encode(
            shape=shape
        )
        band = base.mark_area(opacity=0.15).encode(
            y=alt.Y("low:Q", scale=alt.Scale(type="log")), y2="high:Q", color=colour
        )
        layers = [
            band,
            line,
            *_rounding(run, [row["mean"] for row in rows if row["stack"] == stack]),
        ]
        panels.append(
            alt.layer(*layers).properties(
                width=380, height=280, title=stack if len(stacks) > 1 else ""
            )
        )
    title = f"{run.name}: distance of the tokens from one common vector"
    return alt.hconcat(*panels).properties(title=title)


def _rounding(run: Collapse, values: list[float]) -> list[Any]:
    """A line at the level of rounding errors, if some values are below it."""
    if not any(value < run.floor for value in values):
        return []
    data = alt.Data(values=[{"floor": run.floor, "words": "rounding errors"}])
    place = alt.Chart(data).encode(y=alt.Y("floor:Q", scale=alt.Scale(type="log")))
    text = place.mark_text(align="left", baseline="top", dx=2, dy=2, color="gray").encode(
        x=alt.value(0), text="words:N"
    )
    return [place.mark_rule(strokeDash=[4, 4], color="gray"), text]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def path_shares(run: Collapse) -> Any:
    """The share of the output by number of hops, beside the share of the paths.

    If attention and MLP hops both count, a map of the two.
    """
    rows = [row for row in run.paths if row["part"] == "paths"]
    stacks = list(dict.fromkeys(row["stack"] for row in rows))
    panels = []
    for stack in stacks:
        mine = [row for row in rows if row["stack"] == stack]
        panel = _hop_map(mine) if run.by == "both" else _hop_bars(mine, run.by)
        panels.append(panel.properties(title=stack if len(stacks) > 1 else ""))
    return alt.hconcat(*panels).properties(title=f"{run.name}: the output by path length")


def _hop_map(rows: list[dict[str, Any]]) -> Any:
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("attention_hops:O", title="attention hops", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("mlp_hops:O", title="MLP hops", sort="descending"),
        tooltip=[
            "stack:N",
            alt.Tooltip("attention_hops:O", title="attention hops"),
            alt.Tooltip("mlp_hops:O", title="MLP hops"),
            alt.Tooltip("share:Q", title="share of the output", format=".3g"),
        ],
    )
    most = max(abs(row["share"]) for row in rows) or 1.0
    colour = alt.Color(
        "share:Q",
        title="share of the output",
        scale=alt.Scale(scheme="blueorange", domain=[-most, most]),
    )
    ink = alt.condition(f"abs(datum.share) > {0.6 * most}", alt.value("white"), alt.value("black"))
    text = base.mark_text(fontSize=9).encode(text=alt.Text("share:Q", format=".2f"), color=ink)
    return (base.mark_rect().encode(color=colour) + text).properties(
        width=36 * len({row["attention_hops"] for row in rows})
    )


def _hop_bars(rows: list[dict[str, Any]], by: str) -> Any:
    key = "mlp_hops" if by == "mlp" else "attention_hops"
    bars = [
        {"stack": row["stack"], "hops": row[key], "what": what, "value": row[share]}
        for row in rows
        for what, share in (("of the output", "share"), ("of the paths", "path_share"))
        if row[share] is not None
    ]
    return (
        alt.Chart(alt.Data(values=bars))
        .mark_bar()
        .encode(
            x=alt.X("hops:O", title=key.replace("_", " "), axis=alt.Axis(labelAngle=0)),
            xOffset="what:N",
            y=alt.Y("value:Q", title="share"),
            color=alt.Color("what:N", title="share"),
            tooltip=["stack:N", "hops:O", "what:N", alt.Tooltip("value:Q", format=".3g")],
        )
        .properties(width=380, height=220)
    )


def path_residuals(run: Collapse) -> Any:
    """The relative residual of the paths of each length, and of patterns along single paths."""
    terms = [row for row in run.paths if row["part"] == "paths"] if run.by == "attention" else []
    rows = [
        {
            "stack": row["stack"],
            "hops": row["attention_hops"],
            "what": what,
            "value": max(row["residual"], LEAST),
            "shown": describe_residual(row["residual"], run.floor, ".3g"),
        }
        for what, found in (
            ("sum of the paths", terms),
            ("pattern of a single path", run.single_paths),
        )
        for row in found
    ]
    legend = (
        alt.Legend(symbolType="stroke", symbolStrokeColor="gray")
        if len({row["stack"] for row in rows}) > 1
        else None
    )
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "hops:Q",
                title="attention hops",
                axis=integer_axis(max((row["hops"] for row in rows), default=0)),
            ),
            y=alt.Y(
                "value:Q",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format=".0e"),
                title="relative residual",
            ),
            color=alt.Color("what:N", title="residual of", scale=alt.Scale(scheme="set2")),
            strokeDash=alt.StrokeDash("stack:N", legend=legend),
            tooltip=["stack:N", "hops:Q", "what:N", alt.Tooltip("shown:N", title="residual")],
        )
        .properties(
            width=380,
            height=240,
            title=f"{run.name}: distance from one common vector, by path length",
        )
    )


def bound_map(run: Collapse) -> Any:
    """Maps of layers × heads: the largest spread D of each head, and its Dobrushin coefficient.

    The cubic bound needs a small D.
    """
    panels = []
    for key, name in (("max_d", "max D"), ("dobrushin", "Dobrushin coefficient")):
        rows = [
            {
                "number": name,
                **{part: row[part] for part in ("stack", "layer", "head")},
                "value": row[key],
                "label": "" if row[key] is None else f"{row[key]:.2g}",
            }
            for row in run.bounds
        ]
        panels.append(labelled_map(rows, "value", name, name, log=key == "max_d", cell=(30, 20)))
    return (
        alt.hconcat(*panels)
        .resolve_scale(color="independent")
        .properties(title=f"{run.name}: spread of scores and contraction of each head")
    )


def charts(run: Collapse) -> dict[str, Any]:
    """Every picture that this run has data for, by name."""
    found = {"residual": residual_curves(run), "metrics": run.curves["full"].plot()}
    if run.paths:
        found |= {"paths": path_shares(run), "path-residuals": path_residuals(run)}
    if run.bounds:
        found["bounds"] = bound_map(run)
    return found
