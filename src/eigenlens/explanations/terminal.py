"""Explanations in a terminal: tokens with a colour behind them, or names without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lines import Line, lines
from .verdict import named

if TYPE_CHECKING:
    from .result import Explanation


def strongest_lines(found: Explanation) -> list[str]:
    """One line per method: its five strongest tokens with their scores."""
    made = []
    for method in found.methods:
        strong = [
            f"{named(found, i)} {found.scores[method][i]:.3g}" for i in found.strongest(method, 5)
        ]
        made.append(f"{method}: {', '.join(strong) or 'no token above 0'}")
    return made


def coloured(found: Explanation, width: int) -> list[Any]:
    """Every method as `rich` text: a line of tokens, or a map of patches `width` wide."""
    return (
        [_tokens(line) for line in lines(found)]
        if found.grid is None
        else [_maps(lines(found), width)]
    )


def _tone(level: int) -> str:
    """The style of a level: red for the target, blue against it, black text on top."""
    full = (240, 120, 96) if level > 0 else (110, 170, 235)
    r, g, b = (round(255 + (part - 255) * abs(level) / 10) for part in full)
    return f"rgb(0,0,0) on rgb({r},{g},{b})"


def _tokens(line: Line) -> Any:
    from rich.text import Text

    made = Text()
    made.append(f"{line.method}\n", "bold")
    for cell in line.cells:
        made.append(f" {cell.text} ", f"{_tone(cell.level)}{' bold' if cell.strong else ''}")
    return made


def _maps(made: list[Line], width: int) -> Any:
    """Maps side by side; one character shows two patches, one above the other."""
    from rich.columns import Columns
    from rich.text import Text

    shown = []
    for line in made:
        text = Text(no_wrap=True)
        text.append(f"{line.method}\n", "bold")
        for upper in range(0, len(line.patches), 2):
            pair = line.patches[upper : upper + 2]
            for column in range(min(len(pair[0]), width)):
                above, below = (
                    _tone(row[column].level).rpartition(" on ")[2] for row in (pair[0], pair[-1])
                )
                text.append("▀", f"{above} on {below}")
            text.append("\n")
        shown.append(text)
    return Columns(shown, padding=(0, 3))
