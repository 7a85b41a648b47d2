"""What a terminal prints of a collapse run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..run.result import TitledTable
from ..stats.depth import ATTENTION_METRICS, TOKEN_METRICS

if TYPE_CHECKING:
    from .result import Collapse

MAIN = ("full", "SAN", "SAN+MLP", "SAN+skip")
"""The paper's variants, which are printed first."""
PATHS = ("stack", "part", "attention_hops", "mlp_hops", "paths", "share", "size", "residual")


def collapse_tables(run: Collapse) -> list[TitledTable]:
    """Curves of every variant, the model along depth, paths and bounds.

    What was not measured is left out.
    """
    paths = [{key: row[key] for key in PATHS} for row in run.in_words(run.paths)]
    stacks = {row["stack"] for row in run.rows()}
    stack = ["stack"] if len(stacks) > 1 else []
    hops = () if run.by == "attention" else ("mlp_hops",)
    main = [*stack, "part", "attention_hops", *hops, "paths", "share", "size", "residual"]
    found = [
        TitledTable(
            "How far the tokens are from one common vector (relative residual) after each block",
            run.rows_to_read(),
            columns=[*stack, "depth", *(name for name in MAIN if name in run.curves)],
        ),
        TitledTable(
            "The same without the sink tokens",
            run.in_words(run.rows(tokens="without sinks")),
            long=True,
        ),
        TitledTable(
            "The full model: tokens and patterns along depth",
            run.curves["full"].table_in_words(TOKEN_METRICS + ATTENTION_METRICS),
            long=True,
        ),
        TitledTable(
            "Where the output comes from, by the length of the path (the terms sum to it within"
            f" {run.error or 0:.0e})",
            paths,
            columns=main,
        ),
        TitledTable(
            "Relative residual of the product of patterns along single random paths",
            run.in_words(run.single_paths),
            long=True,
        ),
        TitledTable(
            "Bounds on the residual per layer, median over heads (--json has every head)",
            run.bounds_by_layer() if run.bounds else [],
            long=True,
        ),
        TitledTable(
            "Bounds of attention alone (no norms, skips or MLPs) composed over depth, as base-10"
            " logarithms",
            run.depth_bounds,
            long=True,
        ),
    ]
    return [table for table in found if table.rows]
