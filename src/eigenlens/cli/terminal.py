"""What the commands print: any result, and tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..shell import command

if TYPE_CHECKING:
    from rich.console import Console

    from ..run.result import Result, TitledTable

WIDTH = 100
"""Characters per line at most, unless everything is asked for."""
_NUMBERS = re.compile(r"[<>]?-?\d[\d.,+×e -]*(%|\(.*\))?|–|nan|-?inf|below rounding")
"""A cell of numbers in words: `>64`, `0.56 (0.53–0.61)`, `6 × 12 × 384`."""


def show(result: Result, full: bool = False, folder: Path | None = None) -> None:
    """Print a result of any kind: title, notes, what it draws, tables, remarks, sentence.

    `full` prints the long tables too, and every column; otherwise the last line says how to see
    them in the `folder` of the result.
    """
    from ..captures import labelled

    tables = result.printed()  # first: of a damaged result nothing is shown
    console = _console()
    print_text(result.title)
    for note in result.notes:
        print_text(f"Note: {note}.")
    plain = not console.is_terminal or console.no_color or console.color_system is None
    drawn = result.view(None if plain else console.width)
    for line in drawn:
        print(line) if isinstance(line, str) else console.print(line)
    if drawn:
        print()
    for table in tables:
        if full or not table.long:
            print_table(table.title, labelled(table.rows if full else table.short()), full)
            if table.below:
                _print_notes(table.below)
    for line in result.remarks():
        print_text(line)
    print_text(result.sentence)
    if folder is not None and not full and any(_is_cut(table) for table in tables):
        print(f"\nAll tables and columns: {command('show', folder, '--full')}")


def print_text(text: str) -> None:
    """Print a line; a terminal gets it broken between words."""
    console = _console()
    if console.is_terminal:
        console.print(text, markup=False, highlight=False, emoji=False)
    else:
        print(text)


def print_table(title: str, rows: Sequence[dict[str, Any]], full: bool = False) -> None:
    """Print rows under a title, numbers to the right; at most `WIDTH` wide unless `full`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in rows[0] if rows else ():
        cells = [_cell(row.get(name)) for row in rows]
        words = sum(not _NUMBERS.fullmatch(cell) for cell in cells)
        text = any(len(cell) > 20 for cell in cells)
        longest = max(len(word) for cell in cells for word in (*cell.split(), ""))
        table.add_column(
            name.replace("_", " "),
            justify="left" if text or 2 * words >= len(cells) else "right",
            overflow="fold",
            min_width=min(longest, WIDTH // 3),  # headings are broken before names are
        )
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in rows[0]))
    console = _console(full)
    if title:  # a title of the table itself would be folded to its width
        console.print(title, style="bold", markup=False, highlight=False)
    console.print(table)
    console.print()


def _print_notes(text: str) -> None:
    """Print the lines below a table, each broken between words and indented from then on."""
    width = _console().width
    for line in text.splitlines():
        begin = len(line.split(" ")[0]) + 1 if line[:1].isdigit() else 0
        for one in textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * begin,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            print(one)
    print()


def _is_cut(table: TitledTable) -> bool:
    """Whether less of a table is printed than there is."""
    return table.long or (bool(table.rows) and table.short()[0].keys() != table.rows[0].keys())


def _console(full: bool = False) -> Console:
    """Where results are printed: as wide as the terminal, and no wider than can be read."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        return Console(width=10 * WIDTH if full else WIDTH)
    return console if full else Console(width=min(console.width, WIDTH))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if value == 0 or 5e-4 <= abs(value) < 1e6 else f"{value:.1e}"
