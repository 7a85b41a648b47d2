"""What the commands print: any result, and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..run.result import Result


def show(result: Result) -> None:
    """Print a result of any kind: title, notes, what it draws, tables, remarks, sentence."""
    from rich.console import Console

    tables = result.printed()  # first: of a damaged result nothing is shown
    print(result.title)
    for note in result.notes:
        print(f"Note: {note}.")
    console = Console()
    plain = not console.is_terminal or console.no_color or console.color_system is None
    drawn = result.view(None if plain else console.width)
    for line in drawn:
        print(line) if isinstance(line, str) else console.print(line)
    if drawn:
        print()
    for table in tables:
        print_table(table.title, table.rows)
        if table.below:
            print(f"{table.below}\n")
    for line in result.remarks():
        print(line)
    print(result.sentence)


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows under a title; layers and heads by their labels, such as `L3H4`."""
    from rich.console import Console
    from rich.table import Table

    from ..captures import labelled

    rows = labelled(rows)
    table = Table(show_edge=False, pad_edge=False)
    for name in rows[0] if rows else []:
        table.add_column(
            name.replace("_", " "),
            justify=(
                "left"
                if isinstance(rows[0][name], str) and not rows[0][name][:1].isdigit()
                else "right"
            ),
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    if title:  # a title of the table itself would be folded to its width
        console.print(title, style="bold", markup=False, highlight=False)
    console.print(table)
    console.print()


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if value == 0 or 5e-4 <= abs(value) < 1e6 else f"{value:.1e}"
