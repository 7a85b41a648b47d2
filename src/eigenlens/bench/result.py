"""What a bench found: tables, a sentence and pictures, in a folder that can be read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..display import html_view
from ..errors import EigenlensError
from ..run.files import read_json
from ..shell import command

FORMAT = 1


@dataclass(frozen=True, repr=False)
class Bench:
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
        path = Path(folder) / "bench.json"
        if not path.is_file():
            how = command("bench", "-o", Path(folder).parent)
            raise EigenlensError(
                f"{folder} is no finished bench: it holds no bench.json; make one with: {how}"
            )
        record = read_json(path)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise EigenlensError(
                f"the bench in {folder} is of another format than {FORMAT}; make it anew"
            )
        try:
            found = cls.from_record(record)
            found.rows(), found.charts(), found.sentence.strip()
        except (KeyError, TypeError, AttributeError, StopIteration, ValueError) as error:
            raise EigenlensError(
                f"the bench in {folder} is damaged: {error!r} in bench.json; make it anew"
            ) from error
        return found

    def __repr__(self) -> str:
        return f"<bench of {self.name}: {self.sentence}>"

    def _repr_html_(self) -> str:
        return html_view(self.title, self.sentence, self.plot(), self.rows())
