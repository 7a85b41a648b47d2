"""What a terminal prints of a collapse run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..run.result import TitledTable
from ..stats.depth import ATTENTION_METRICS, TOKEN_METRICS

if TYPE_CHECKING:
    from .result import Collapse

PATHS = ("stack", "part", "attention_hops", "mlp_hops", "paths", "share", "size", "residual")


def collapse_tables(run: Collapse) -> list[TitledTable]:
    """Curves of every variant, the model along depth, paths and bounds.

    What was not measured is left out.
    """
    paths = [{key: row[key] for key in PATHS} for row in run.in_words(run.paths)]
    found = [
        TitledTable(
            "How far the tokens are from one vector: relative residual behind each block",
            run.rows_to_read(),
        ),
        TitledTable(
            "The same without the sink tokens", run.in_words(run.rows(tokens="without sinks"))
        ),
        TitledTable(
            "The model itself: tokens and patterns along depth",
            run.curves["full"].table_in_words(TOKEN_METRICS + ATTENTION_METRICS),
        ),
        TitledTable(
            f"The output by path length (the terms sum to it within {run.error or 0:.0e})", paths
        ),
        TitledTable(
            "Products of patterns along single random paths", run.in_words(run.single_paths)
        ),
        TitledTable(
            "Bounds, median of the heads (the JSON record and the folder have every head)",
            run.bounds_by_layer() if run.bounds else [],
        ),
        TitledTable(
            "Bounds of this attention without norms, skips and MLPs, composed over depth, base-ten"
            " logarithms",
            run.depth_bounds,
        ),
    ]
    return [table for table in found if table.rows]
