"""Overlap matrices, ordered by layer or by cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from ..errors import EigenlensError
from ..spectra.overlap import Overlap
from ..spectra.plots import overlap_chart
from ..studies.comparison import Comparison, comparison_sentence
from ..studies.make_comparison import compare
from ..studies.result import Study
from .figures import Arrays, Figure, figure

MOST_CELLS = 160_000
"""Matrices with more cells are left out: a browser would take long to draw them."""


@dataclass(frozen=True)
class Matrix:
    """One matrix of the page, with the orders of its rows and columns."""

    label: str
    sentence: str
    figure: Figure
    record: dict[str, Any]


def of_study(study: Study, key: str, arrays: Arrays) -> list[Matrix]:
    """The overlaps of heads with heads and of layers with layers.

    Empty if a study has no rows, or if layers see different numbers of keys.
    """
    if not study.has("rows") or len({site.keys for site in study.sites.values()}) > 1:
        return []
    keys = next(iter(study.sites.values())).keys
    rank = min(16, max(keys - 1, 1))
    found = []
    for level, label in (("head", "heads"), ("layer", "layers")):
        overlap = study.overlap(rank=rank, level=level)  # type: ignore[arg-type]
        if len(overlap.rows_) > 1 and overlap.matrix.size <= MOST_CELLS:
            found.append(_matrix(overlap, f"{key}-{label}", label, overlap.sentence, arrays))
    return found


def of_comparison(comparison: Comparison, key: str, arrays: Arrays) -> list[Matrix]:
    """The overlaps of layers and of heads, for every pair of studies."""
    found = []
    for level, label in (("layer", "layers"), ("head", "heads")):
        pairs = [pair for pair in comparison.pairs if pair.level == level]
        rank = max(pair.rank for pair in pairs)
        for number, pair in enumerate(p for p in pairs if p.rank == rank):
            if pair.forward.matrix.size > MOST_CELLS:
                continue
            name = f"{label} of {pair.forward.left} with {label} of {pair.forward.right}"
            sentence = comparison_sentence(pair.record())
            found.append(_matrix(pair.forward, f"{key}-{label}-{number}", name, sentence, arrays))
    return found


def compared(studies: list[Study]) -> tuple[Comparison | None, str]:
    """The comparison of the studies, or the reason why there is none."""
    if len(studies) < 2:
        return None, ""
    try:
        return compare(*studies), ""
    except EigenlensError as error:
        return None, f"These studies are not compared: {error}."


def _matrix(overlap: Overlap, key: str, label: str, sentence: str, arrays: Arrays) -> Matrix:
    title = f"Share of their leading {overlap.rank} directions in common: {label}"
    text = f"A heat map of {len(overlap.rows_)} by {len(overlap.columns)} cells. {sentence}"
    drawn = figure(
        key, overlap_chart(alt.NamedData(name=key), overlap), title, text, renderer="canvas"
    )
    down = cluster_order(overlap.matrix)
    across = down if overlap.same else cluster_order(overlap.matrix.T)
    orders = {"layer": [list(range(n)) for n in overlap.matrix.shape], "cluster": [down, across]}
    record = {
        "figure": key,
        "left": overlap.row_labels,
        "right": overlap.column_labels,
        "rank": overlap.rank,
        "chance": overlap.chance,
        "matrix": arrays.add(np.round(overlap.matrix * 65535).clip(0, 65535).astype(np.uint16)),
        "orders": orders,
    }
    return Matrix(label, sentence, drawn, record)


def cluster_order(matrix: np.ndarray) -> list[int]:
    """The order of rows that puts similar ones beside each other.

    By average linkage of the rows, with leaves ordered optimally.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import pdist

    if len(matrix) < 3:
        return list(range(len(matrix)))
    distances = pdist(matrix)
    return [
        int(i) for i in leaves_list(optimal_leaf_ordering(linkage(distances, "average"), distances))
    ]
