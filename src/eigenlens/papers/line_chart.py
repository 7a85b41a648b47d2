"""The line chart of papers: one column of a table against another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def line_chart(
    rows: Sequence[dict[str, Any]],
    x: str,
    y: str,
    by: str,
    *,
    title: str = "",
    axis_titles: tuple[str, str] | None = None,
    log: Collection[str] = (),
    band: tuple[str, str] | None = None,
    ticks: Sequence[float] = (),
    width: int = 320,
    height: int = 240,
) -> Any:
    """The column `y` against `x`, one line per value of the column `by` (an altair chart).

    `axis_titles` are those of x and y (default: the names of the columns). `log` has "x", "y" or
    both for logarithmic axes. `band` names two columns, the lower and the upper end of a shaded
    range. `ticks` are the values of x that its axis names, instead of round ones. Rows without one
    of these numbers are left out, and so are rows with a number of zero or less on a logarithmic
    axis.
    """
    import altair as alt

    title_x, title_y = axis_titles or (x, y)
    needed = [x, y, *(band or ())]
    positive = [column for axis, column in (("x", x), ("y", y)) if axis in log]
    data = [
        row
        for row in rows
        if all(row.get(key) is not None for key in needed) and all(row[key] > 0 for key in positive)
    ]
    scale_x, scale_y = (
        alt.Scale(type="log", nice=not (ticks and axis == "x"))
        if axis in log
        else alt.Scale(zero=False)
        for axis in ("x", "y")
    )
    # integers, such as numbers of blocks, get no ticks between them
    whole = "x" not in log and all(isinstance(row[x], int) for row in data)
    marks: dict[str, Any] = {"tickMinStep": 1, "format": ",d"} if whole else {}
    if ticks:
        marks |= {"values": list(ticks), "format": ",d"}
    order = list(dict.fromkeys(str(row[by]) for row in data))
    scheme = alt.Scale(scheme="tableau10" if len(order) <= 10 else "tableau20")
    base = alt.Chart(alt.Data(values=[{**row, by: str(row[by])} for row in data])).encode(
        x=alt.X(f"{x}:Q", title=title_x, scale=scale_x, axis=alt.Axis(labelOverlap=True, **marks)),
        color=alt.Color(f"{by}:N", sort=order, scale=scheme, legend=alt.Legend(symbolOpacity=1)),
    )
    value = alt.Y(f"{y}:Q", title=title_y, scale=scale_y)
    chart = base.mark_line(strokeWidth=1.5).encode(y=value) + base.mark_circle(
        size=40, opacity=1
    ).encode(y=value, tooltip=[f"{by}:N", f"{x}:Q", alt.Tooltip(f"{y}:Q", format=".4g")])
    if band is not None:
        chart = (
            base.mark_area(opacity=0.15).encode(
                y=alt.Y(f"{band[0]}:Q", title=title_y, scale=scale_y), y2=band[1]
            )
            + chart
        )
    return chart.properties(title=title, width=width, height=height)
