"""What a bench found: tables, a sentence and pictures, in a folder that can be read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ..run.result import TitledTable
from ..run.result_folder import read_result, report_damage
from ..run.tables_result import TablesResult

FORMAT = 1
LABELS = {
    "crossover": "faster from tokens",
    "longest": "at tokens",
    "times_sdpa": "times torch's",
    "milliseconds_a_step": "ms per step",
    "share_of_full": "attention cost",
    "row_dimension_90": "row dimensions",
    "first_key": "on first key",
    "largest_column": "on heaviest key",
    "gap": "s₂ / s₁",
    "way": "mechanisms",
    "share": "cost",
    "loop_milliseconds": "loop ms",
    "chunks_milliseconds": "chunks ms",
}
"""What a terminal prints over a column, where that is not its name."""
COLUMNS = {
    "quality": (
        "task",
        "mechanism",
        "loss",
        "loss_low",
        "loss_high",
        "accuracy",
        "milliseconds_a_step",
        "share_of_full",
    ),
    "damage": ("model", "mechanism", "settings", "plain", "changed", "kept"),
}
"""The main columns of tables that have too many for a page."""


@dataclass(frozen=True, repr=False)
class Bench(TablesResult):
    """One bench: `tables` of rows by name, the main one first, and one plain `sentence` on them.

    >>> found = Bench.open("bench/speed")
    >>> found.rows()[0], found.plot()
    """

    kind = "bench"
    left_out = frozenset(
        {"refused", "mlp_width", "accuracy_low", "accuracy_high", "first_singular_value"}
    )

    labels: ClassVar[Mapping[str, str]] = LABELS
    most_rows = 20

    name: str
    title: str
    sentence: str

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """The rows of a table, or of the main one."""
        return self.table(next(iter(self.tables)) if table is None else table)

    def charts(self) -> dict[str, Any]:
        """Every picture by name, the main one first (altair charts)."""
        from .pictures import CHARTS

        return CHARTS[self.name](self.tables)

    def plot(self) -> Any:
        """The main picture (an altair chart)."""
        return next(iter(self.charts().values()))

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it."""
        return {
            "format": FORMAT,
            "bench": self.name,
            "title": self.title,
            "sentence": self.sentence,
            **self.tables_record(),
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Bench:
        return cls(record["bench"], record["title"], record["sentence"], **cls.tables_of(record))

    @classmethod
    def open(cls, folder: str | Path) -> Bench:
        """Open a bench; a damaged or foreign folder is refused with the reason."""
        record = read_result(folder, "bench", FORMAT, ("bench", "-o", Path(folder).parent))
        with report_damage(folder, "bench"):
            if not record["tables"]:
                raise ValueError("it has no tables")
            found = cls.from_record(record)
            found.rows(), found.charts(), found.sentence.strip()
        return found

    def main_columns(self, name: str) -> Sequence[str]:
        """The columns of a table that a terminal prints by default."""
        return COLUMNS.get(name, ())

    def printed(self) -> list[TitledTable]:
        """The tables that a terminal prints, the main one however long it is."""
        tables = super().printed()
        if not tables:
            return []
        main, *others = tables
        measures = {row["model"]: row["measure"] for row in main.rows if "measure" in row}
        below = ", ".join(f"{measure} ({model})" for model, measure in measures.items())
        return [replace(main, long=False, below=below and f"Measured: {below}."), *others]

    def __repr__(self) -> str:
        return f"<bench of {self.name}: {self.sentence}>"
