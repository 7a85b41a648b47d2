"""Pictures of spectra and overlaps, as altair charts, and tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from .overlap import Overlap
from .spectrum import Spectra

BLUES = "tealblues"


def _data(rows: Sequence[dict[str, Any]]) -> alt.Data:
    return alt.Data(values=list(rows))


def dimension_map(spectra: Spectra, analysis: str = "rows", centring: str = "centred", share: float = 0.9) -> alt.Chart:
    """Layers × heads, coloured by the held-out dimension at `share`; the number stands in each cell."""
    heads = spectra.select(analysis=analysis, level="head", centring=centring)
    most = max((len(s.eigenvalues) for s in heads), default=1)
    rows: list[dict[str, Any]] = []
    for s in heads:
        found = s.dimension(share)
        rows.append({"layer": f"{s.stack} {s.layer}", "order": s.layer, "head": s.head,
                     "dimension": most if found is None else found, "label": f">{most}" if found is None else str(found),
                     "effective rank": round(s.effective_rank, 1)})  # fmt: skip
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("layer:N", title="layer", sort=layers),
        tooltip=["layer:N", "head:O", "label:N", "effective rank:Q"],
    )
    size = spectra.spectra[0].dimensions if len(spectra) else most
    title = f"Dimensions for {share:.0%} of held-out variance ({analysis}, {centring}; of {size})"
    cells = base.mark_rect().encode(color=alt.Color("dimension:Q", scale=alt.Scale(scheme=BLUES), title="dimensions"))
    middle = (max((row["dimension"] for row in rows), default=0) + min((row["dimension"] for row in rows), default=0)) / 2
    text = base.mark_text(fontSize=10).encode(
        text="label:N",
        color=alt.condition(f"datum.dimension > {middle}", alt.value("white"), alt.value("black")),
    )
    return (cells + text).properties(title=title, width=alt.Step(34), height=alt.Step(24))


def spectrum_curves(spectra: Spectra) -> alt.Chart:
    """Explained variance against components: held-out with its interval, in-sample dashed; one panel a layer."""
    rows, points = [], 40
    for s in spectra:
        m = len(s.eigenvalues)
        chosen = np.unique(np.round(np.geomspace(1, m, min(points, m))).astype(int)) - 1
        for k in chosen:
            place = f"{s.stack} {s.layer}" if s.layer is not None else s.stack
            shared = {"layer": place, "head": "all" if s.head is None else str(s.head), "components": int(k) + 1}
            rows.append({**shared, "share": float(s.held_out[k]), "variance": "held out"})
            rows.append({**shared, "share": float(s.explained[k]), "variance": "in the sample"})
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    what = f"{spectra.spectra[0].analysis}, {spectra.spectra[0].centring}" if len(spectra) else ""
    return (
        alt.Chart(_data(rows))
        .mark_line(strokeWidth=1.2, opacity=0.8)
        .encode(
            x=alt.X("components:Q", scale=alt.Scale(type="log", nice=False), title="components"),
            y=alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"), title="variance explained"),
            color=alt.Color("head:N", sort=[str(i) for i in range(64)], scale=alt.Scale(scheme="tableau20")),
            strokeDash=alt.StrokeDash("variance:N", sort=["held out", "in the sample"]),
            tooltip=["layer:N", "head:N", "components:Q", alt.Tooltip("share:Q", format=".1%"), "variance:N"],
        )
        .properties(width=230, height=150)
        .facet(alt.Facet("layer:N", sort=layers, title=None), columns=3, title=f"Variance explained ({what})")
    )


def overlap_map(overlap: Overlap) -> alt.Chart:
    """Overlap of every pair of eigenspaces; the colour scale starts at the chance level."""
    rows = [
        {"left": left, "right": right, "overlap": round(float(overlap.matrix[i, j]), 4)}
        for i, left in enumerate(overlap.rows_)
        for j, right in enumerate(overlap.columns)
    ]
    step = max(3, min(18, 620 // max(len(overlap.rows_), 1)))
    labels = alt.Axis(labels=step >= 8, ticks=step >= 8)
    return (
        alt.Chart(_data(rows))
        .mark_rect()
        .encode(
            x=alt.X("right:N", sort=list(overlap.columns), title=overlap.right, axis=labels),
            y=alt.Y("left:N", sort=list(overlap.rows_), title=overlap.left, axis=labels),
            color=alt.Color(
                "overlap:Q",
                scale=alt.Scale(scheme=BLUES, domain=[overlap.chance, 1], clamp=True),
                title=["overlap", f"(chance {overlap.chance:.3f})"],
            ),
            tooltip=["left:N", "right:N", alt.Tooltip("overlap:Q", format=".3f")],
        )
        .properties(
            width=alt.Step(step),
            height=alt.Step(step),
            title=f"Overlap of the leading {overlap.rank} eigenvectors, ‖UᵀV‖²/r",
        )
    )


def map_pictures(maps: np.ndarray, titles: Sequence[str], columns: int = 4, most: int = 48) -> alt.Chart:
    """Matrices (queries × keys) as heat maps side by side, thinned to at most `most` rows and columns."""
    step = max(1, -(-maps.shape[1] // most))
    rows = []
    for title, picture in zip(titles, maps):
        thin = picture[::step, ::step]
        scale = float(np.nanmax(np.abs(thin))) or 1.0
        for i in range(thin.shape[0]):
            for j in range(thin.shape[1]):
                if np.isfinite(thin[i, j]):
                    rows.append(
                        {"map": title, "query": i * step, "key": j * step, "value": round(float(thin[i, j]) / scale, 4)}
                    )
    return (
        alt.Chart(_data(rows))
        .mark_rect()
        .encode(
            x=alt.X("key:O", axis=None),
            y=alt.Y("query:O", axis=None),
            color=alt.Color("value:Q", scale=alt.Scale(scheme="redblue", domain=[-1, 1], reverse=True), title="of its largest"),
        )
        .properties(width=150, height=150)
        .facet(alt.Facet("map:N", sort=list(titles), title=None), columns=columns)
    )


def html_table(rows: Sequence[dict[str, Any]], most: int = 200) -> str:
    """A plain HTML table for notebooks; whatever the values hold is shown, not run."""
    if not rows:
        return "<p>nothing</p>"
    names = list(rows[0])
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_shown(row.get(name)))}</td>" for name in names) + "</tr>" for row in rows[:most]
    )
    more = f"<p>… {len(rows) - most} more rows</p>" if len(rows) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
