"""Pictures of spectra and overlaps, as altair charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
from altair.utils.schemapi import debug_mode

from ..captures import Head, Labels, Site, location_of
from ..display import percent
from .overlap import Overlap
from .spectrum import Spectra
from .within import IN_WORDS, Within

BLUES = "tealblues"
DARK = 0.65
"""The share of that colour scale from which on text is white."""


def _data(rows: Sequence[dict[str, Any]]) -> alt.Data:
    # altair would check every row against its grammar: seconds for a map of 144 heads
    with debug_mode(False):
        return alt.Data(values=list(rows))


def dimension_map(
    spectra: Spectra, analysis: str = "rows", centring: str = "centred", share: float = 0.9
) -> alt.Chart:
    """Draw layers × heads, coloured by the held-out dimension at `share`, with it in each cell."""
    heads = spectra.select(analysis=analysis, level="head", centring=centring)
    most = max((len(s.eigenvalues) for s in heads), default=1)
    rows: list[dict[str, Any]] = []
    for s in heads:
        found = s.dimension(share)
        rows.append(
            {
                "stack": s.stack,
                "layer": s.layer,
                "head": s.head,
                "dimension": most if found is None else found,
                "label": f">{most}" if found is None else str(found),
                "effective rank": round(s.effective_rank, 1),
            }
        )
    size = spectra.spectra[0].dimensions if len(spectra) else most
    over = ", over all rows" if any(s.valid_rows is not None for s in heads) else ""
    kind = f"{analysis}, {centring}{over}; of {size}"
    title = f"Dimensions needed for {percent(share)} of held-out variance ({kind})"
    return labelled_map(rows, "dimension", "dimensions", title)


def integer_axis(most: int, about: int = 12) -> alt.Axis:
    """Return an axis with about so many ticks, at whole numbers from 0 to `most`."""
    return alt.Axis(values=list(range(0, most + 1, max(1, most // about))), format="d")


def labelled_map(
    rows: Sequence[dict[str, Any]],
    value: str,
    name: str,
    title: str,
    log: bool = False,
    cell: tuple[int, int] = (34, 24),
) -> alt.LayerChart:
    """Draw layers × heads, coloured by one number of each head, with its label in the cell.

    Rows hold stack, layer, head, label and the number under `value` (None if there is none); `name`
    is the title of the legend, `cell` is a width and a height.
    """
    labels = Labels(row["stack"] for row in rows)
    rows = [
        {**row, "site": labels(Site(row["stack"], row["layer"])), "name": labels(location_of(row))}
        for row in rows
    ]
    layers = list(dict.fromkeys(row["site"] for row in rows))
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("site:N", title="layer", sort=layers),
        tooltip=[alt.Tooltip("name:N", title="head"), alt.Tooltip("label:N", title=name)],
    )
    known = [
        row[value] for row in rows if row[value] is not None and (row[value] > 0 or not log)
    ] or [1.0]
    least, most = min(known), max(known)
    dark = least * (most / least) ** DARK if log else least + DARK * (most - least)
    scale = alt.Scale(scheme=BLUES, type="log" if log else "linear")
    colour = alt.Color(
        f"{value}:Q", scale=scale, title=name, legend=alt.Legend(format=".2~g" if log else "~g")
    )
    ink = alt.condition(f"datum.{value} > {dark}", alt.value("white"), alt.value("black"))
    text = base.mark_text(fontSize=10 if cell[0] > 30 else 9).encode(text="label:N", color=ink)
    size = {
        "width": cell[0] * (1 + max((row["head"] for row in rows), default=0)),
        "height": cell[1] * len(layers),
    }
    return (base.mark_rect().encode(color=colour) + text).properties(title=title, **size)


def within_map(within: Within, share: float = 0.9) -> alt.LayerChart:
    """Draw layers × heads, coloured by the components that `share` of the energy needs."""
    rows: list[dict[str, Any]] = [
        {
            "stack": one.stack,
            "layer": one.layer,
            "head": one.head,
            "components": one.dimension(share),
            "label": str(one.dimension(share)),
        }
        for one in within
    ]
    first = within.spectra[0]
    title = (
        f"Components for {percent(share)} of the energy of one input's scores (row-centred;"
        f" median of {first.inputs} inputs; of {first.most})"
    )
    return labelled_map(rows, "components", "components", title)


def growth_curves(within: Within) -> alt.LayerChart:
    """Draw the components of one input by its tokens: the median head, and most heads."""
    scores = [row for row in within.growth() if row["what"] != "pattern"]
    rows = [{**row, "what": IN_WORDS[row["what"]]} for row in scores]
    base = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "tokens:Q",
            scale=alt.Scale(type="log", base=2, nice=False),
            axis=alt.Axis(values=within.lengths, format=",d", labelOverlap=True),
            title="tokens",
        ),
        color=alt.Color(
            "what:N",
            title=None,
            scale=alt.Scale(range=["#2f7f9f", "#c0504d"]),
            legend=alt.Legend(symbolOpacity=1),
        ),
    )
    band = base.mark_area(opacity=0.18).encode(
        y=alt.Y("dimension_90_low:Q", title="components for 90 % of the energy"),
        y2="dimension_90_high:Q",
    )
    line = base.mark_line(point=True, strokeWidth=2).encode(
        y="dimension_90:Q",
        tooltip=[
            "what:N",
            alt.Tooltip("tokens:Q", format=","),
            alt.Tooltip("dimension_90:Q", title="median head"),
            alt.Tooltip("dimension_90_low:Q", title="10 % of heads"),
            alt.Tooltip("dimension_90_high:Q", title="90 % of heads"),
            "inputs:Q",
        ],
    )
    title = "Growth with length: components of one input, median head and 10 to 90 % of heads"
    return (band + line).properties(title=title, width=420, height=220)


def spectrum_curves(spectra: Spectra) -> alt.Chart:
    """Draw explained variance against the number of components, one panel per layer.

    Held-out variance with its interval, in-sample variance dashed.
    """
    labels = spectra.labels
    rows = [
        {
            "stack": s.stack,
            "layer": s.layer,
            "head": "all" if s.head is None else str(s.head),
            "site": labels(s.at.site if isinstance(s.at, Head) else s.at),
            "name": labels(s.at),
            **point,
        }
        for s in spectra
        for point in s.points(40)
    ]
    layers = list(dict.fromkeys(row["site"] for row in rows))
    what = f"{spectra.spectra[0].analysis}, {spectra.spectra[0].centring}" if len(spectra) else ""
    return (
        alt.Chart(_data(rows))
        .mark_line(strokeWidth=1.2, opacity=0.8)
        .encode(
            x=alt.X("components:Q", scale=alt.Scale(type="log", nice=False), title="components"),
            y=alt.Y(
                "share:Q",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%"),
                title="share of variance explained",
            ),
            color=alt.Color(
                "head:N", sort=[str(i) for i in range(64)], scale=alt.Scale(scheme="tableau20")
            ),
            strokeDash=alt.StrokeDash("variance:N", sort=["held out", "in the sample"]),
            tooltip=[
                alt.Tooltip("name:N", title="spectrum"),
                "components:Q",
                alt.Tooltip("share:Q", format=".1%"),
                "variance:N",
            ],
        )
        .properties(width=230, height=150)
        .facet(
            alt.Facet("site:N", sort=layers, title=None),
            columns=3,
            title=f"Share of variance explained by the first components ({what})",
        )
    )


def explained_curve(data: alt.Data) -> alt.LayerChart:
    """Draw one head: variance explained against the number of components.

    Held-out variance with its interval, in-sample variance dashed.

    Rows of `data`: analysis, components, variance (`held out` or `in the sample`), share, low,
    high.
    """
    base = alt.Chart(data).encode(
        x=alt.X("components:Q", scale=alt.Scale(type="log", nice=False), title="components"),
        color=alt.Color(
            "analysis:N",
            sort=["rows", "matrices"],
            scale=alt.Scale(scheme="tableau10"),
            title="spectrum of",
            legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolOpacity=1),
        ),
    )
    axis = alt.Axis(format="%")
    band = base.mark_area(opacity=0.3).encode(
        y=alt.Y("low:Q", axis=axis, title="share of variance explained"), y2="high:Q"
    )
    line = base.mark_line(strokeWidth=1.6, clip=True).encode(
        y=alt.Y(
            "share:Q",
            scale=alt.Scale(domain=[0, 1]),
            axis=axis,
            title="share of variance explained",
        ),
        strokeDash=alt.StrokeDash(
            "variance:N",
            sort=["held out", "in the sample"],
            title="variance",
            legend=alt.Legend(symbolType="stroke"),
        ),
        tooltip=["analysis:N", "variance:N", "components:Q", alt.Tooltip("share:Q", format=".1%")],
    )
    return (band.transform_filter("datum.variance == 'held out'") + line).properties(
        width=330, height=210
    )


def vector_lines(
    data: alt.Data, entry: str = "entry of the eigenvector", lines: str = "eigenvector"
) -> alt.Chart:
    """Draw the leading eigenvectors of rows along the keys, one line each.

    Rows of `data`: component, position, value.
    """
    return (
        alt.Chart(data)
        .mark_line(strokeWidth=1.3)
        .encode(
            x=alt.X("position:Q", title="key position", scale=alt.Scale(nice=False)),
            y=alt.Y("value:Q", title=entry),
            color=alt.Color("component:N", title=lines, scale=alt.Scale(scheme="tableau10")),
            strokeDash=alt.StrokeDash(
                "component:N", title=lines, legend=alt.Legend(symbolType="stroke")
            ),
            tooltip=["component:N", "position:Q", alt.Tooltip("value:Q", format=".3f")],
        )
        .properties(width=330, height=210)
    )


def overlap_map(overlap: Overlap) -> alt.Chart:
    """Draw the overlap of every pair of eigenspaces."""
    rows = [
        {
            "left": left,
            "right": right,
            "row": i,
            "column": j,
            "overlap": round(float(overlap.matrix[i, j]), 4),
        }
        for i, left in enumerate(overlap.row_labels)
        for j, right in enumerate(overlap.column_labels)
    ]
    return overlap_chart(_data(rows), overlap).properties(
        title=f"Overlap of the leading {overlap.rank} eigenvectors, ‖UᵀV‖²/r"
    )


def overlap_chart(data: alt.Data, overlap: Overlap) -> alt.Chart:
    """Draw a heat map whose colours start at the chance level.

    Rows of `data`: left, right, row, column, overlap.

    Rows and columns are in the order of the fields `row` and `column`, so that another order needs
    only other numbers.
    """
    step = max(3, min(36, 620 // max(len(overlap.rows_), 1)))
    labels = alt.Axis(labelOverlap="greedy", labelFontSize=9, ticks=False)
    marked = [
        overlap.chance,
        *(tick for tick in (0.25, 0.5, 0.75, 1.0) if tick > overlap.chance * 1.2),
    ]
    chance = (
        f"datum.value < {overlap.chance * 1.1} ? 'chance {overlap.chance:.3f}' :"
        " format(datum.value, '.2f')"
    )
    return (
        alt.Chart(data)
        .mark_rect()
        .encode(
            x=alt.X(
                "right:N",
                sort=alt.EncodingSortField("column", op="min"),
                title=overlap.right,
                axis=labels,
            ),
            y=alt.Y(
                "left:N",
                sort=alt.EncodingSortField("row", op="min"),
                title=overlap.left,
                axis=labels,
            ),
            color=alt.Color(
                "overlap:Q",
                scale=alt.Scale(scheme=BLUES, domain=[overlap.chance, 1], clamp=True),
                legend=alt.Legend(title="overlap", values=marked, labelExpr=chance),
            ),
            tooltip=["left:N", "right:N", alt.Tooltip("overlap:Q", format=".3f")],
        )
        .properties(width=step * len(overlap.columns), height=step * len(overlap.rows_))
    )


def map_pictures(
    maps: np.ndarray, titles: Sequence[str], columns: int = 4, most: int = 48
) -> alt.Chart:
    """Draw matrices (queries × keys) as heat maps; above `most` rows, means of blocks."""
    rows = []
    for title, picture in zip(titles, maps):
        small, step = block_means(picture[None], most)
        scale = float(np.nanmax(np.abs(small))) or 1.0
        for i, j in zip(*np.nonzero(np.isfinite(small[0]))):
            value = float(small[0, i, j])
            place = {"query": int(i) * step, "key": int(j) * step}
            rows.append(
                {
                    "map": title,
                    "order": titles.index(title),
                    **place,
                    "value": float(f"{value:.4g}"),
                    "relative": round(value / scale, 4),
                }
            )
    return heat_maps(_data(rows), columns)


def heat_maps(data: alt.Data, columns: int = 4) -> alt.Chart:
    """Draw heat maps side by side, each coloured relative to its largest entry.

    Rows of `data`: map (its title), order, query, key, value, relative.
    """
    bare = alt.Axis(labels=False, ticks=False, domain=False)
    return (
        alt.Chart(data)
        .mark_rect()
        .encode(
            x=alt.X("key:O", axis=bare, title="key"),
            y=alt.Y("query:O", axis=bare, title="query"),
            color=alt.Color(
                "relative:Q",
                scale=alt.Scale(scheme="redblue", domain=[-1, 1], reverse=True),
                title="relative to largest",
            ),
            tooltip=["map:N", "query:Q", "key:Q", alt.Tooltip("value:Q", format=".3g")],
        )
        .properties(width=150, height=150)
        .facet(
            alt.Facet("map:N", sort=alt.EncodingSortField("order", op="min"), title=None),
            columns=columns,
        )
    )


def block_means(maps: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Return maps `(N, T, S)` as means of `step × step` blocks, at most `most` per side.

    Blocks without a pair are NaN.

    >>> block_means(np.arange(16.0).reshape(1, 4, 4), 2)[0][0].tolist()
    [[2.5, 4.5], [10.5, 12.5]]
    """
    N, T, S = maps.shape
    step = max(1, -(-max(T, S) // most))
    if step == 1:
        return maps, 1
    rows, columns = -(-T // step), -(-S // step)
    padded = np.full((N, rows * step, columns * step), np.nan, dtype=np.float32)
    padded[:, :T, :S] = maps
    blocks = padded.reshape(N, rows, step, columns, step)
    known = np.isfinite(blocks)
    number = known.sum((2, 4))
    total = np.where(known, blocks, 0).sum((2, 4))
    return np.where(number > 0, total / np.maximum(number, 1), np.nan), step
