"""The one protocol of every kind of result.

Studies, plans, evaluations, collapse runs, explanations, comparisons, benches, reproductions and
training runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

from ..display import html_view
from ..errors import EigenlensError
from .files import disk_errors

Rows = list[dict[str, Any]]
"""Records with the same keys, ready for a data frame.

Layers and heads are whole numbers in columns of their own.
"""
FRAMES = ("pandas", "polars")


@dataclass(frozen=True)
class TitledTable:
    """Rows under a title, and the notes below them.

    A terminal prints `columns` of them, or all where none are named; a `long` table only when all
    is asked for (`eigenlens show FOLDER --full`).
    """

    title: str
    rows: Rows
    below: str = ""
    columns: Sequence[str] = ()
    long: bool = False

    def short(self) -> Rows:
        """The rows with the columns that are printed by default."""
        if not self.columns:
            return self.rows
        return [{name: row[name] for name in self.columns if name in row} for row in self.rows]


class Result(Protocol):
    """What a result can do, whatever it is a result of.

    `open(save(folder))` has the same rows and the same record. A result lives in a folder of JSON
    and safetensors files, and opens without the model.
    """

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a folder; a damaged or foreign one is refused with the reason."""

    def save(self, folder: str | Path) -> Path:
        """Write the result into a folder, and return it."""

    @property
    def name(self) -> str:
        """What it is of, in a few words: `minilm on python-docs`."""

    @property
    def title(self) -> str:
        """The line above everything that is shown of it."""

    @property
    def sentence(self) -> str:
        """What it found, in words made from its numbers."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader has to know of how it was made; each is a sentence without its end."""

    def rows(self) -> Rows:
        """Its main numbers, one record per head, measure or token."""

    def frame(self) -> Any:
        """The rows as a data frame of pandas, or of polars where that alone is installed."""

    def record(self) -> dict[str, Any]:
        """Everything as plain data, as `--json` prints it."""

    def plot(self) -> Any:
        """Its main picture (an altair chart)."""

    def printed(self) -> list[TitledTable]:
        """What a terminal prints of it."""

    def rows_to_read(self) -> Rows:
        """What a notebook unfolds: the rows, or fewer and in words."""

    def view(self, width: int | None) -> list[Any]:
        """What a terminal shows above the tables.

        Text that `rich` draws, `width` characters wide, or plain lines where the terminal has no
        colours (None).
        """

    def remarks(self) -> list[str]:
        """Lines between the tables and the sentence."""

    def _repr_html_(self) -> str:
        """The view in a notebook."""


class ResultViews:
    """What every result has without saying so; a kind that knows better has its own."""

    def frame(self: Result) -> Any:
        """The rows as a data frame of pandas, or of polars where that alone is installed."""
        return frame_of(self.rows())

    def rows_to_read(self: Result) -> Rows:
        """What a notebook unfolds."""
        return self.rows()

    def view(self, width: int | None) -> list[Any]:
        """What a terminal shows above the tables."""
        return []

    def remarks(self) -> list[str]:
        """Lines between the tables and the sentence."""
        return []

    def _repr_html_(self: Result) -> str:
        """The view in a notebook: title, sentence, notes, picture, and rows to unfold."""
        try:
            chart = self.plot()
        except EigenlensError:  # nothing to draw: numbers and words are there all the same
            chart = None
        words = " ".join([self.sentence, *(f"Note: {note}." for note in self.notes)])
        return html_view(self.title, words, chart, self.rows_to_read())


def frame_of(rows: Rows) -> Any:
    """Records as a data frame of whichever library is installed, pandas first."""
    for name in FRAMES:
        try:
            library = import_module(name)
        except ImportError:
            continue
        # polars takes the types of columns from the first hundred rows by default
        more = {"infer_schema_length": None} if name == "polars" else {}
        return library.DataFrame(rows, **more)
    raise EigenlensError(
        "a data frame needs pandas or polars, and neither is installed; install pandas or polars"
    )


def without_columns(rows: Iterable[dict[str, Any]], names: Collection[str]) -> Rows:
    """Rows without the columns that would crowd a printed table."""
    return [{key: value for key, value in row.items() if key not in names} for row in rows]


def copy_files(source: Path, names: Iterable[str], folder: str | Path) -> Path:
    """Copy files of a result to another folder; the one that makes it a result comes last."""
    folder = Path(folder)
    with disk_errors(folder):
        for name in names:
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if not (place.exists() and place.samefile(source / name)):
                shutil.copyfile(source / name, place)
    return folder
