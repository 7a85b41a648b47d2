"""The tables of the page: some columns to read, all columns to save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..captures import labelled
from ..collapses.result import Collapse
from ..diagnostics.depth import TITLES
from ..plans.evaluation import Evaluation
from ..plans.result import Plan
from ..plans.tables import choice_rows, curve_rows
from ..studies.comparison import Comparison
from ..studies.result import Study
from ..studies.tables import summary_numbers
from .figures import columns


@dataclass(frozen=True)
class Table:
    """A table: rows under a title.

    `shown` are the columns that the page prints; if empty, all of them. A `folded` table is closed
    even if it is short. `to_read` are the same rows with words for some numbers; the page prints
    them, but sorts by the numbers and saves these.
    """

    key: str
    title: str
    rows: list[dict[str, Any]]
    shown: tuple[str, ...] = ()
    folded: bool = False
    to_read: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def printed(self) -> list[dict[str, Any]]:
        """The rows as the page prints them: layers and heads by their labels, such as `L3H4`."""
        return labelled(self.to_read or self.rows)

    @cached_property
    def names(self) -> list[str]:
        """The columns that the page prints."""
        known = list(dict.fromkeys(name for row in self.printed for name in row))
        return [name for name in self.shown if name in known] or known

    @property
    def labels(self) -> str:
        """The column of labels, which the page sorts by their text; "" if there is none."""
        row, printed = (self.to_read or self.rows)[0], self.printed[0]
        known = (name for name in ("head", "layer") if name in printed)
        return next((name for name in known if row.get(name) != printed[name]), "")

    def record(self) -> dict[str, list[Any]]:
        return columns(self.rows)


HEADS = (
    "stack",
    "layer",
    "head",
    "rows_centred_held_out_dimension_90",
    "rows_centred_valid_rows_held_out_dimension_90",
    "rows_centred_dimension_90",
    "rows_centred_effective_rank",
    "rows_centred_held_out_at_16",
    "matrices_centred_held_out_dimension_90",
    "matrices_centred_effective_rank",
    "within_centred_90",
    "weights_90",
    "entropy_all",
    "gap_all",
    "sinks_rate",
    "induction_prefix",
    "relevance_median",
    "plan_estimator",
    "plan_work",
    "plan_total_variation",
    "evaluation_total_variation",
    "bounds_max_d",
    "paths_all",
)


DIMENSIONS = (
    "stack",
    "words",
    "most",
    "dimension_50",
    "dimension_90",
    "dimension_95",
    "dimension_99",
)


def study_tables(study: Study, numbers: Sequence[dict[str, Any]], key: str) -> list[Table]:
    tables = [Table(f"{key}-all", "Every head (all numbers in the CSV)", list(numbers), HEADS)]
    if len(study.spectra):
        title = "Dimensions for 50, 90, 95 and 99 % of the held-out variance, median of the heads"
        tables.append(Table(f"{key}-summary", title, summary_numbers(study)))
    if study.has("depth"):
        title, names = "Tokens and patterns along depth, means over inputs", list(TITLES)
        tables.append(
            Table(
                f"{key}-depth",
                title,
                study.depth.table(names),
                to_read=study.depth.table_in_words(names),
            )
        )
    return [table for table in tables if table.rows]


def comparison_tables(comparison: Comparison, key: str) -> list[Table]:
    found = [
        Table(f"{key}-pairs", "Every pair of studies", comparison.rows()),
        Table(
            f"{key}-changes",
            "What changed in the diagnostics: first study (left), each other study (right)",
            comparison.changes(),
        ),
    ]
    return [table for table in found if table.rows]


def plan_tables(plan: Plan, key: str) -> list[Table]:
    tables = [Table(f"{key}-choices", "What each head gets", choice_rows(plan))]
    if plan.curve:
        tables.append(
            Table(
                f"{key}-curve",
                "Every estimator at every budget, mean of the heads",
                curve_rows(plan),
            )
        )
    return tables


def evaluation_tables(evaluation: Evaluation, key: str) -> list[Table]:
    return [
        Table(f"{key}-measures", "The changed model beside the plain model", evaluation.rows()),
        Table(f"{key}-heads", "Every head of the changed model", evaluation.heads),
    ]


PATHS = (
    "stack",
    "part",
    "attention_hops",
    "mlp_hops",
    "paths",
    "path_share",
    "share",
    "size",
    "residual",
)


RESIDUALS = ("residual", "without", "lengths", "single")
"""Tables of residuals, where words replace numbers that are rounding."""


def collapse_tables(run: Collapse, key: str) -> dict[str, Table]:
    """The tables of a run that have rows, by name; the key of a table begins with `key`."""
    layers = run.bounds_by_layer() if run.bounds else []
    found: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "residual": ("Relative residual after each block, by variant", run.rows()),
        "without": ("The same without the sink tokens", run.rows(tokens="without sinks")),
        "lengths": ("Share of the output by path length", run.paths),
        "single": (
            "Relative residual of the product of patterns along a random path",
            run.single_paths,
        ),
        "layers": ("Bounds, median of the heads of each layer", layers),
        "bounds": ("Bounds of every head", run.bounds),
        "composed": ("Bounds composed over depth, as base-ten logarithms", run.depth_bounds),
    }
    return {
        name: Table(
            f"{key}-{name}",
            title,
            rows,
            PATHS if name == "lengths" else (),
            to_read=run.in_words(rows) if name in RESIDUALS else [],
        )
        for name, (title, rows) in found.items()
        if rows
    }
