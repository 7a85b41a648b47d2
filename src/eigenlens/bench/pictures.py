"""Pictures of the benches, as altair charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from .entrants import FULL
from .spectra import MEASURES
from .speed import YARDSTICK

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]
BLACK, GREY, BLUE = "#222222", "#8a8a8a", "#1f5a94"
STEP = 17
"""Pixels of a row with one mechanism."""


def speed_charts(tables: Tables) -> dict[str, Any]:
    """Milliseconds and megabytes against tokens on logarithmic axes, a panel per direction."""
    rows = [row for row in tables["lengths"] if row["milliseconds"] is not None]
    return {
        "time": _lengths(rows, "milliseconds", "milliseconds of a forward call"),
        "memory": _lengths(rows, "megabytes", "megabytes held at most"),
    }


def _lengths(rows: Sequence[Row], value: str, title: str) -> alt.HConcatChart:
    lengths = sorted({row["tokens"] for row in rows})
    panels = []
    for direction in dict.fromkeys(row["direction"] for row in rows):
        mine = [row for row in rows if row["direction"] == direction and row[value] > 0]
        names = list(dict.fromkeys(row["mechanism"] for row in mine))
        # Those that end highest stand first in the legend, as their lines do.
        last = {
            name: max((row["tokens"], row[value]) for row in mine if row["mechanism"] == name)
            for name in names
        }
        order = sorted(names, key=lambda name: (-last[name][1] / last[name][0] ** 2, name))
        # one colour in all pictures
        place = {name: i for i, name in enumerate(name for name in names if name != YARDSTICK)}
        colours = [
            BLACK if name == YARDSTICK else COLOURS[place[name] % len(COLOURS)] for name in order
        ]
        dashes = [[6, 3] if place.get(name, 0) >= len(COLOURS) else [1, 0] for name in order]
        base = alt.Chart(alt.Data(values=mine)).encode(
            x=alt.X(
                "tokens:Q",
                title="tokens",
                scale=alt.Scale(type="log", base=2, nice=False),
                axis=alt.Axis(values=lengths, format="d", labelOverlap=True),
            ),
            y=alt.Y(
                f"{value}:Q",
                title=title,
                scale=alt.Scale(type="log", nice=False, padding=8),
                axis=alt.Axis(values=_ticks(mine, value, (1,)), format="~r"),
            ),
            color=alt.Color(
                "mechanism:N",
                sort=order,
                scale=alt.Scale(domain=order, range=colours),
                title=direction,
            ),
            strokeDash=alt.StrokeDash(
                "mechanism:N", scale=alt.Scale(domain=order, range=dashes), title=direction
            ),
            tooltip=["mechanism:N", "tokens:Q", alt.Tooltip(f"{value}:Q", format=".3g")],
        )
        thick = alt.condition(alt.datum.mechanism == YARDSTICK, alt.value(3.5), alt.value(1.6))
        lines = base.mark_line().encode(strokeWidth=thick) + base.mark_circle(size=26, opacity=1)
        panels.append(lines.properties(title=direction, width=340, height=330))
    return alt.hconcat(*panels).resolve_scale(color="independent", strokeDash="independent")


def quality_charts(tables: Tables) -> dict[str, Any]:
    """For each task a row of panels: the measure with its spread, and what it costs."""
    rows = tables["quality"]
    stacked = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = sorted((row for row in rows if row["task"] == task), key=lambda row: row["loss"])
        order = [row["mechanism"] for row in mine]
        panels = [
            _dots(
                mine,
                order,
                "loss",
                "held-out loss (line: range of the seeds)",
                ("loss_low", "loss_high"),
                width=260,
                mark=True,
            ),
            _dots(
                mine,
                order,
                "share_of_full",
                "attention multiply-adds, full = 1",
                log=True,
                labels=False,
            ),
            _dots(
                mine, order, "milliseconds_a_step", "milliseconds per training step", labels=False
            ),
        ]
        shown = [panel for panel in panels if panel is not None]
        stacked.append(alt.hconcat(*shown, spacing=8).properties(title=f"{task}, best first"))
    return {"quality": alt.vconcat(*stacked)}


def spectra_charts(tables: Tables) -> dict[str, Any]:
    """For each task a row of panels: rank, gap and sinks of every mechanism.

    The dashed line is full attention.
    """
    rows, stacked = tables["spectra"], []
    chosen = ("effective_rank", "row_dimension_90", "gap", "largest_column", "entropy")
    short = {"row_dimension_90": "dimensions of the rows, 90 %", "gap": "s₂ / s₁"}
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = sorted(
            (row for row in rows if row["task"] == task), key=lambda row: -row["effective_rank"]
        )
        order = [row["mechanism"] for row in mine]
        panels = [
            _dots(
                mine, order, key, short.get(key, MEASURES[key]), labels=i == 0, width=140, mark=True
            )
            for i, key in enumerate(chosen)
        ]
        stacked.append(
            alt.hconcat(*[panel for panel in panels if panel is not None], spacing=8).properties(
                title=task
            )
        )
    return {"spectra": alt.vconcat(*stacked)}


def _dots(
    rows: Sequence[Row],
    order: Sequence[str],
    value: str,
    title: str,
    interval: tuple[str, str] | None = None,
    *,
    log: bool = False,
    labels: bool = True,
    width: int = 180,
    mark: bool = False,
) -> Any:
    """One row per mechanism with a dot at its value.

    Full attention is black; with `mark` a line goes through it.
    """
    data = [row for row in rows if row.get(value) is not None and (row[value] > 0 or not log)]
    if not data:
        return None
    scale = (
        alt.Scale(type="log", nice=False, padding=8) if log else alt.Scale(zero=False, padding=8)
    )
    axis = alt.Axis(
        labelOverlap=True,
        format="~r",
        **({"values": _ticks(data, value)} if log else {"tickCount": 4}),
    )
    base = alt.Chart(alt.Data(values=data)).encode(
        y=alt.Y(
            "mechanism:N",
            sort=list(order),
            title=None,
            scale=alt.Scale(domain=list(order)),
            axis=alt.Axis(labels=labels, ticks=False, grid=True, domain=False, labelLimit=140),
        ),
        color=alt.condition(alt.datum.mechanism == FULL, alt.value(BLACK), alt.value(BLUE)),
    )
    x = alt.X(f"{value}:Q", title=title, scale=scale, axis=axis)
    chart = base.mark_circle(size=60, opacity=1).encode(
        x=x, tooltip=["mechanism:N", alt.Tooltip(f"{value}:Q", format=".4g")]
    )
    if interval is not None:
        ends = alt.X(f"{interval[0]}:Q", title=title, scale=scale)
        chart = (
            base.mark_rule(strokeWidth=2, opacity=0.6).encode(x=ends, x2=f"{interval[1]}:Q") + chart
        )
    if mark and any(row["mechanism"] == FULL for row in data):
        level = alt.Chart(alt.Data(values=[row for row in data if row["mechanism"] == FULL]))
        chart = (
            level.mark_rule(strokeDash=[4, 3], color=GREY).encode(
                x=alt.X(f"{value}:Q", title=title, scale=scale)
            )
            + chart
        )
    return chart.properties(width=width, height=STEP * len(order))


def _ticks(rows: Sequence[Row], value: str, steps: Sequence[int] = (1, 2, 5)) -> list[float]:
    """Ticks of a logarithmic axis.

    They are these multiples of powers of ten, as far as the values go.
    """
    low, high = (f(row[value] for row in rows) for f in (min, max))
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    return [
        step * 10.0**power
        for power in powers
        for step in steps
        if low / 2 <= step * 10.0**power <= high * 2
    ]


def damage_charts(tables: Tables) -> dict[str, Any]:
    """Models × mechanisms: the model's own measure, coloured by what is left of its answers."""
    both = [*tables["damage"], *tables["refused"]]
    cells = [
        {
            "model": row["model"],
            "what": _what(row),
            "kept": row["kept"],
            "label": "" if row["kept"] is None else _cell(row),
        }
        for row in tables["damage"]
    ]
    order = list(dict.fromkeys(_what(row) for row in both if row["mechanism"] != "all"))
    models = list(dict.fromkeys(row["model"] for row in both))
    measures = {row["model"]: row["measure"] for row in tables["damage"]}
    named = {
        model: f"{model}: {measures[model]}" if model in measures else model for model in models
    }
    base = alt.Chart(
        alt.Data(values=[{**cell, "model": named[cell["model"]]} for cell in cells])
    ).encode(
        x=alt.X(
            "model:N",
            sort=[named[model] for model in models],
            title=None,
            axis=alt.Axis(orient="top", labelAngle=-35, labelAlign="left", labelLimit=320),
            scale=alt.Scale(domain=[named[model] for model in models]),
        ),
        y=alt.Y(
            "what:N",
            sort=order,
            title=None,
            scale=alt.Scale(domain=order),
            axis=alt.Axis(labelLimit=240),
        ),
    )
    colour = alt.Color(
        "kept:Q",
        title="answers kept",
        scale=alt.Scale(range=["#b2182b", "#f7f7f7", "#2166ac"], domain=[0, 0.5, 1], clamp=True),
    )
    text = base.mark_text(fontSize=11).encode(
        text="label:N",
        color=alt.condition(
            "datum.kept > 0.85 || datum.kept < 0.15", alt.value("white"), alt.value(BLACK)
        ),
    )
    chart = base.mark_rect(stroke="white").encode(color=colour) + text
    size = {"width": max(64 * len(models), 120), "height": max(22 * len(order), 60)}
    return {
        "damage": chart.properties(title="Answers kept without training (empty: refused)", **size)
    }


def _what(row: Row) -> str:
    return f"{row['mechanism']} ({row['settings']})" if row["settings"] else row["mechanism"]


def _cell(row: Row) -> str:
    """Such as `18.2` of a perplexity, with the plain one where it stands in the same column.

    `0.998` of a cosine.
    """
    changed = row["changed"]
    if row["measure"] == "perplexity":
        ratio = changed / row["plain"]
        return f"× {ratio:.3g}" if ratio < 1e4 else "× >10⁴"
    return f"{changed:.3f}"


def choose_charts(tables: Tables) -> dict[str, Any]:
    """Loss after fine-tuning against cost for every way, and which head got which mechanism."""
    rows = [{**row, "share": round(row["share"], 4)} for row in tables["choices"]]
    panels = [
        _choice([row for row in rows if row["task"] == task], task)
        for task in dict.fromkeys(r["task"] for r in rows)
    ]
    first = min(row["seed"] for row in tables["heads"])
    heads = [row for row in tables["heads"] if row["seed"] == first]
    names = list(
        dict.fromkeys(
            sorted((row["mechanism"] for row in heads), key=lambda name: (name != FULL, name))
        )
    )
    maps = [
        _heads(
            [row for row in heads if (row["task"], row["budget"]) == key],
            names,
            f"{key[0]}, budget {key[1]:g}",
        )
        for key in dict.fromkeys((row["task"], row["budget"]) for row in heads)
    ]
    title = "Mechanism of each head (first seed); the number is its relevance"
    return {"choice": alt.hconcat(*panels), "heads": alt.hconcat(*maps).properties(title=title)}


def _choice(rows: Sequence[Row], task: str) -> Any:
    ways = ["all full", "all local", "chosen", "shuffled"]
    named = "held-out loss, fine-tuned (line: range of the seeds)"
    scale = alt.Scale(domain=ways, range=[BLACK, GREY, "#1b7837", "#e08214"])
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        x=alt.X(
            "share:Q",
            title="attention multiply-adds, full = 1",
            axis=alt.Axis(format="%", tickCount=6),
        ),
        color=alt.Color("way:N", sort=ways, title=None, scale=scale),
        tooltip=["way:N", "share:Q", alt.Tooltip("after:Q", format=".4f")],
    )
    y = alt.Y("after:Q", title=named, scale=alt.Scale(zero=False))
    chart = (
        base.transform_filter("isValid(datum.budget)").mark_line(strokeWidth=1.5).encode(y=y)
        + base.mark_rule(strokeWidth=2, opacity=0.6).encode(
            y=alt.Y("after_low:Q", title=named), y2="after_high:Q"
        )
        + base.mark_circle(size=70, opacity=1).encode(y=y)
    )
    return chart.properties(width=330, height=260, title=task)


def _heads(rows: Sequence[Row], names: Sequence[str], title: str) -> Any:
    """Layers × heads, coloured by mechanism."""
    cells = [{**row, "label": f"{row['relevance']:.2f}".lstrip("0")} for row in rows]
    grid = alt.Chart(alt.Data(values=cells)).encode(
        x=alt.X("head:O", axis=alt.Axis(labelAngle=0)), y=alt.Y("layer:O", sort="descending")
    )
    colour = alt.Color(
        "mechanism:N", scale=alt.Scale(domain=list(names), scheme="tableau10"), sort=list(names)
    )
    shown = grid.mark_rect(stroke="white").encode(color=colour) + grid.mark_text(
        color="white"
    ).encode(text="label:N")
    wide, high = len({row["head"] for row in cells}), len({row["layer"] for row in cells})
    return shown.properties(title=title, width=max(38 * wide, 130), height=30 * high)


COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#e15759",
    "#76b7b2",
    "#59a14f",
    "#edc948",
    "#b07aa1",
    "#ff9da7",
    "#9c755f",
    "#bab0ac",
    "#1b9e77",
    "#d95f02",
    "#7570b3",
    "#e7298a",
)
CHARTS: dict[str, Callable[[Tables], dict[str, Any]]] = {
    "speed": speed_charts,
    "quality": quality_charts,
    "damage": damage_charts,
    "spectra": spectra_charts,
    "choose": choose_charts,
}
