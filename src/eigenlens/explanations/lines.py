"""Explanations as coloured tokens: cells to draw, and HTML for a notebook."""

from __future__ import annotations

import html as markup
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..display import html_table, numbered, picture_view, visible

if TYPE_CHECKING:
    from .result import Explanation

MOST_CELLS = 200
"""The most frames of sound in a line; if there are more, neighbours are joined."""
FOR, AGAINST = "200, 64, 44", "44, 111, 179"


@dataclass(frozen=True)
class Cell:
    """One token of a line.

    It has a text, a colour from −10 to 10, a score, and is or is not one of the strongest.
    """

    text: str
    level: int
    score: float
    strong: bool = False
    full_text: str = ""
    """The full text, as a line may show less."""
    row: int | None = None
    column: int | None = None
    """Row and column of a patch of a picture; None for other tokens."""


@dataclass(frozen=True)
class Line:
    """The tokens of one method, in their order.

    For a picture, the tokens before the patches, and the patches row by row.
    """

    method: str
    cells: list[Cell]
    patches: list[list[Cell]]


def lines(found: Explanation) -> list[Line]:
    """One line of cells per method."""
    made = []
    for method in found.methods:
        strong = set(found.strongest(method))
        cells = [
            (
                Cell(_short(token), level, score, i in strong, visible(token))
                if found.grid is None
                # the token is a name that we gave, such as `frame 12`
                else Cell(token, level, score, i in strong, token)
            )
            for i, (token, level, score) in enumerate(
                zip(found.tokens, found.levels(method), found.scores[method])
            )
        ]
        if found.grid is None:
            made.append(Line(method, cells, []))
            continue
        down, across = found.grid
        front = len(cells) - down * across
        patches = [cells[front + row * across : front + (row + 1) * across] for row in range(down)]
        if down > 1:  # one row is frames of sound
            patches = [
                [replace(cell, row=row, column=column) for column, cell in enumerate(cells_of_row)]
                for row, cells_of_row in enumerate(patches)
            ]
        made.append(Line(method, cells[:front], [_pooled(row) for row in patches]))
    return made


def _short(token: str) -> str:
    """The text of a token in a line, with a gap for the space that many begin with."""
    return visible(token[1:] if token[:1] == " " and token.strip() else token)


def _pooled(row: list[Cell]) -> list[Cell]:
    """At most 200 cells; the strongest of several neighbours stands for all of them."""
    step = -(-len(row) // MOST_CELLS)
    runs = [row[i : i + step] for i in range(0, len(row), step)]
    return row if step == 1 else [max(run, key=lambda cell: abs(cell.score)) for run in runs]


def html(found: Explanation) -> str:
    """An explanation in a notebook: its sentence, a line per method, deletion curves, numbers."""
    body = "".join(_line(line) for line in lines(found))
    curves = picture_view(found.plot_deletion(), "deletion curves") if found.deletion else ""
    rows = [{**row, "token": visible(row["token"])} for row in found.rows()]
    table = (
        f"<details><summary>{numbered(len(rows), 'token')}</summary>{html_table(rows)}</details>"
    )
    message = f"<h4>{_escaped(found.name)}</h4><p>{_escaped(found.sentence)}</p>"
    return f"{message}{body}{curves}{table}"


def _line(line: Line) -> str:
    words = " ".join(_span(cell) for cell in line.cells)
    maps = "".join(
        f"<div style='line-height: 0; white-space: nowrap'>{''.join(map(_patch, row))}</div>"
        for row in line.patches
    )
    return f"<div style='margin: .4em 0'><b>{_escaped(line.method)}</b><br>{words}{maps}</div>"


def _style(cell: Cell) -> str:
    alpha = 0.06 * abs(cell.level)
    return (
        f"background: rgba({FOR if cell.level > 0 else AGAINST}, {alpha:.2f})" if cell.level else ""
    )


def _span(cell: Cell) -> str:
    style = f"{_style(cell)}; border-radius: .2em; padding: 0 .15em" + (
        "; font-weight: bold" if cell.strong else ""
    )
    return (
        f'<span title="{_escaped(cell.full_text)}: {cell.score:.3g}"'
        f' style="{style}">{_escaped(cell.text)}</span>'
    )


def _patch(cell: Cell) -> str:
    style = f"{_style(cell)}; display: inline-block; width: 10px; height: 10px"
    return f'<span title="{_escaped(cell.full_text)}: {cell.score:.3g}" style="{style}"></span>'


def _escaped(text: str) -> str:
    return markup.escape(text).encode("utf-8", "backslashreplace").decode()
