"""What a bench found: tables, a sentence and pictures, in a folder that can be read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import EigenlensError
from ..run.files import disk_errors, write_json
from ..run.result import ResultViews, TitledTable, without_columns
from ..run.result_folder import read_result, report_damage

FORMAT = 1
LEFT_OUT = {"refused", "mlp_width", "accuracy_low", "accuracy_high", "first_singular_value"}
"""Columns that are in the record and would crowd a printed table."""


@dataclass(frozen=True, repr=False)
class Bench(ResultViews):
    """One bench: `tables` of rows by name, the main one first, and one plain `sentence` on them.

    `shown` are the tables to print, title and name of each.

    >>> found = Bench.open("bench/speed")
    >>> found.rows()[0], found.plot()
    """

    name: str
    title: str
    sentence: str
    tables: Mapping[str, Sequence[dict[str, Any]]]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    shown: Sequence[Sequence[str]] = ()

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """The rows of a table, or of the main one."""
        if table is not None and table not in self.tables:
            raise EigenlensError(
                f"no table {table!r} of the bench {self.name}; there are {', '.join(self.tables)}"
            )
        return list(self.tables[table if table is not None else next(iter(self.tables))])

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
            "tables": {name: list(rows) for name, rows in self.tables.items()},
            "notes": list(self.notes),
            "settings": dict(self.settings),
            "shown": [list(pair) for pair in self.shown],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Bench:
        return cls(
            record["bench"],
            record["title"],
            record["sentence"],
            record["tables"],
            tuple(record["notes"]),
            record["settings"],
            record["shown"],
        )

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

    def save(self, folder: str | Path) -> Path:
        """Write `bench.json` into a folder."""
        folder = Path(folder)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "bench.json", self.record())
        return folder

    def printed(self) -> list[TitledTable]:
        """The tables that a terminal prints, without the columns that would crowd them."""
        return [
            TitledTable(title, without_columns(self.rows(name), LEFT_OUT))
            for title, name in self.shown
            if self.rows(name)
        ]

    def __repr__(self) -> str:
        return f"<bench of {self.name}: {self.sentence}>"
