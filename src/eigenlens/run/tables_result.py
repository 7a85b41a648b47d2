"""A result that is made of tables: what a bench and a reproduction have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..errors import EigenlensError
from .result import ResultViews, Rows, TitledTable
from .result_folder import write_result


@dataclass(frozen=True, kw_only=True)
class TablesResult(ResultViews):
    """`tables` of rows by name, the main one first; `shown` are those to print.

    Each kind of result has its own fields before these, and the name of its file.
    """

    kind: ClassVar[str]
    """The name of the kind, such as `bench`; its file is then `bench.json`."""
    left_out: ClassVar[Collection[str]]
    """Columns that a terminal prints only when all is asked for."""
    labels: ClassVar[Mapping[str, str]] = {}
    """What a terminal prints over a column, where that is not its name."""
    most_rows: ClassVar[int]
    """A table with more rows is long."""

    tables: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    shown: Sequence[Sequence[str]] = ()
    """Title and name of each table to print."""

    def table(self: Any, name: str) -> Rows:
        """Return the rows of a table."""
        if name not in self.tables:
            raise EigenlensError(
                f"no table {name!r} of the {self.kind} {self.name}; there are"
                f" {', '.join(self.tables)}"
            )
        return list(self.tables[name])

    def tables_record(self) -> dict[str, Any]:
        """The tables and what belongs to them, as plain data."""
        return {
            "tables": {name: list(rows) for name, rows in self.tables.items()},
            "notes": list(self.notes),
            "settings": dict(self.settings),
            "shown": [list(pair) for pair in self.shown],
        }

    @staticmethod
    def tables_of(record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the result from plain data."""
        return {
            "tables": record["tables"],
            "notes": tuple(record["notes"]),
            "settings": record["settings"],
            "shown": record["shown"],
        }

    def save(self: Any, folder: str | Path) -> Path:
        """Write the record as `bench.json`, `reproduction.json`, … into a folder."""
        return write_result(folder, self.kind, self.record())

    def main_columns(self, name: str) -> Sequence[str]:
        """The columns of a table that a terminal prints by default; none stands for all."""
        return ()

    def printed(self) -> list[TitledTable]:
        """The tables that have rows, with their main columns; those of many rows are long."""
        found = []
        for title, name in self.shown:
            rows = self.table(name)
            if rows:
                main = [key for key in self.main_columns(name) if key in rows[0]] or [*rows[0]]
                found.append(
                    TitledTable(
                        title,
                        [{self.labels.get(key, key): x for key, x in row.items()} for row in rows],
                        columns=[self.labels.get(k, k) for k in main if k not in self.left_out],
                        long=len(rows) > self.most_rows,
                    )
                )
        return found
