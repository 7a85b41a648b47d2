"""Explanations on the page: coloured tokens, one line per method, readable without a script."""

from __future__ import annotations

from dataclasses import dataclass

from ..explanations.lines import Cell, Line, lines
from ..explanations.plots import ORDERS
from ..explanations.result import Explanation
from .figures import Figure, figure
from .tables import Table

COLOURS = {
    "text": (
        "Red tokens speak for the target, blue ones with a dotted line against it; the three"
        " strongest tokens of a method are bold."
    ),
    "map": (
        "Red patches speak for the target, blue ones against it; tokens in front of a map belong to"
        " no patch."
    ),
}
SCALE = (
    "Every method has its own scale: full colour is its largest score among the tokens that can be"
    " taken away; if no score is below 0, no colour is its smallest. Tokens that always stay, such"
    " as special tokens, have full colour if they score more."
)


@dataclass(frozen=True)
class Tokens:
    """What the page draws of one explanation.

    Lines of tokens, or maps of patches with the picture beside them.
    """

    lines: list[Line]
    legend: str
    picture: str | None
    """A small picture as a `data:` address."""

    @property
    def maps(self) -> bool:
        return any(line.patches for line in self.lines)

    @staticmethod
    def colour(cell: Cell) -> str:
        """The CSS class of a cell: `for-7`, `against-2`; the style sheet has a colour for each."""
        side = "for" if cell.level > 0 else "against"
        return f"{side}-{abs(cell.level)}" if cell.level else "none"

    @staticmethod
    def place(cell: Cell) -> str:
        """A patch as `row 3, column 4`; other tokens by their text."""
        return cell.full_text if cell.row is None else f"row {cell.row}, column {cell.column}"

    @staticmethod
    def text(line: Line) -> str:
        """A map in words, for readers who cannot see it."""
        cells = [cell for row in line.patches for cell in row]
        strong = sorted((cell for cell in cells if cell.strong), key=lambda cell: -cell.score)
        message = "; ".join(f"{Tokens.place(cell)}: {cell.score:.3g}" for cell in strong)
        return (
            f"{line.method}, {len(line.patches)} by {len(line.patches[0])} patches. Strongest:"
            f" {message or 'none above 0'}."
        )


def tokens_of(found: Explanation) -> Tokens:
    picture = found.picture
    safe = picture if isinstance(picture, str) and picture.startswith("data:image/") else None
    return Tokens(lines(found), f"{COLOURS['text' if found.grid is None else 'map']} {SCALE}", safe)


def deletion_figures(found: Explanation, key: str) -> list[Figure]:
    if not found.deletion:
        return []
    orders = "; ".join(f"{order}: {message}" for order, message in ORDERS.items())
    text = f"Two panels of lines over the share of tokens taken away ({orders}). {found.sentence}"
    return [
        figure(
            f"{key}-deletion",
            found.plot_deletion(),
            "The target's score while tokens are taken away",
            text,
        )
    ]


def explanation_tables(found: Explanation, key: str) -> list[Table]:
    title = (
        "Area under the deletion curves: a good method has a low area for positive (most relevant"
        " first) and a high one for negative (least relevant first)"
    )
    found_tables = [
        Table(f"{key}-areas", title, found.areas()),
        Table(f"{key}-tokens", "Every token by every method", found.rows()),
    ]
    return [table for table in found_tables if table.rows]
