"""The one line chart that papers draw their tables with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def curves(
    rows: Sequence[dict[str, Any]],
    x: str,
    y: str,
    by: str,
    *,
    title: str = "",
    names: tuple[str, str] | None = None,
    log: Collection[str] = (),
    band: tuple[str, str] | None = None,
    width: int = 320,
    height: int = 240,
) -> Any:
    """Lines with points of `y` against `x`, one for each value of `by`, in the order of the rows
    (an altair chart).

    `names` are the titles of the axes, `log` names those that are logarithmic (of "x", "y"), `band`
    two columns that bound a shaded range. Rows that lack a number, or have none above zero on a
    logarithmic axis, are left out.
    """
    import altair as alt

    names = names or (x, y)
    needed = [x, y, *(band or ())]
    above = [column for axis, column in (("x", x), ("y", y)) if axis in log]
    data = [
        row
        for row in rows
        if all(row.get(key) is not None for key in needed) and all(row[key] > 0 for key in above)
    ]
    kinds = [alt.Scale(type="log") if axis in log else alt.Scale(zero=False) for axis in ("x", "y")]
    # no 2.5 among numbers of blocks
    whole = "x" not in log and all(isinstance(row[x], int) for row in data)
    ticks = {"tickMinStep": 1, "format": ",d"} if whole else {}
    order = list(dict.fromkeys(str(row[by]) for row in data))
    scheme = alt.Scale(scheme="tableau10" if len(order) <= 10 else "tableau20")
    base = alt.Chart(alt.Data(values=[{**row, by: str(row[by])} for row in data])).encode(
        x=alt.X(
            f"{x}:Q", title=names[0], scale=kinds[0], axis=alt.Axis(labelOverlap=True, **ticks)
        ),
        color=alt.Color(f"{by}:N", sort=order, scale=scheme, legend=alt.Legend(symbolOpacity=1)),
    )
    value = alt.Y(f"{y}:Q", title=names[1], scale=kinds[1])
    chart = base.mark_line(strokeWidth=1.5).encode(y=value) + base.mark_circle(
        size=40, opacity=1
    ).encode(y=value, tooltip=[f"{by}:N", f"{x}:Q", alt.Tooltip(f"{y}:Q", format=".4g")])
    if band is not None:
        chart = (
            base.mark_area(opacity=0.15).encode(
                y=alt.Y(f"{band[0]}:Q", title=names[1], scale=kinds[1]), y2=band[1]
            )
            + chart
        )
    return chart.properties(title=title, width=width, height=height)
