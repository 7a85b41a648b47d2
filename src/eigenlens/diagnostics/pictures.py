"""The two usual pictures of a diagnostic: a map of layers × heads, and curves along the layers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .finding import Finding


def head_map(finding: Finding, name: str | None = None) -> Any:
    """Draw one number of every head, layers × heads, one panel per stack (an altair chart)."""
    import altair as alt

    name = name or next(iter(finding.words))
    labels, words = finding.labels, finding.words[name]
    rows = [
        {**asdict(at), "called": labels(at), "value": value}
        for at, value in finding.values(name).items()
    ]
    panels = []
    for stack in finding.stacks:
        base = alt.Chart(alt.Data(values=[row for row in rows if row["stack"] == stack])).encode(
            x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("layer:O", title="layer"),
        )
        cells = base.mark_rect().encode(
            color=alt.Color("value:Q", title=None, scale=alt.Scale(range=["#bce4d8", "#20466e"])),
            tooltip=[alt.Tooltip("called:N", title="head"), alt.Tooltip("value:Q", format=".4g")],
        )
        title = labels.stack(stack) if len(finding.stacks) > 1 else ""
        panels.append(cells.properties(width=alt.Step(22), height=alt.Step(18), title=title))
    return alt.hconcat(*panels, title=f"{words[0].upper()}{words[1:]}")


def layer_curves(finding: Finding, names: tuple[str, ...] | None = None) -> Any:
    """Draw numbers along the layers, one panel each, one line per stack (an altair chart)."""
    import altair as alt

    from ..spectra.plots import integer_axis

    labels = finding.labels
    chosen = names or tuple(finding.words)
    rows = [
        {
            "number": finding.words[n.name],
            "stack": labels.stack(n.stack),
            "layer": n.layer,
            "called": labels(n.at),
            "mean": n.mean,
            "low": n.low,
            "high": n.high,
        }
        for n in finding.numbers
        if n.name in chosen
    ]
    ticks = integer_axis(max((n.layer for n in finding.numbers), default=0), about=8)
    legend = alt.Legend(symbolOpacity=1) if len(finding.stacks) > 1 else None
    stack = alt.Color("stack:N", title="stack", legend=legend)
    base = alt.Chart().encode(x=alt.X("layer:Q", axis=ticks, title="layer"), color=stack)
    large = "abs(datum.value) >= 1e5 ? format(datum.value, '.1e') : datum.label"
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title=None), y2="high:Q")
    line = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(labelExpr=large)),
        tooltip=[
            "number:N",
            alt.Tooltip("called:N", title="layer"),
            alt.Tooltip("mean:Q", format=".4g"),
        ],
    )
    titles = [finding.words[name] for name in chosen]
    # of weights there are no intervals
    marks = [band, line] if any(row["low"] is not None for row in rows) else [line]
    return (
        alt.layer(*marks, data=alt.Data(values=rows))
        .properties(width=230, height=150)
        .facet(facet=alt.Facet("number:N", sort=titles, title=None), columns=3, title=finding.title)
        .resolve_scale(y="independent")
    )
