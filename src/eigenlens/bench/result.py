"""What a bench found: tables, a sentence and pictures, in a folder that can be read again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..run.result import TitledTable
from ..run.result_folder import read_result, report_damage
from ..run.tables_result import TablesResult

FORMAT = 1


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

    def printed(self) -> list[TitledTable]:
        """The tables that a terminal prints; one without rows is left out."""
        return [table for table in super().printed() if table.rows]

    def __repr__(self) -> str:
        return f"<bench of {self.name}: {self.sentence}>"
