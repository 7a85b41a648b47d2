"""Fill the sources of the pages, and draw their pictures, from the results."""

from fnmatch import fnmatchcase
from pathlib import Path

from .figures import sources_of, unknown
from .pictures import redraw
from .results import Page, Results, WrongMarker

FILLED = ("README.md", "docs/papers/*.md", "docs/measurements/*.md", "benchmarks/*.md")
"""The pages that may hold markers."""


def filled_pages(root: Path) -> list[Path]:
    return [path for pattern in FILLED for path in sorted(root.glob(pattern))]


def is_filled(place: str) -> bool:
    """Whether a page, by its place in the repository, may hold markers."""
    return any(fnmatchcase(place, pattern) for pattern in FILLED)


def typed_figures(root: Path, results: Results) -> list[str]:
    """The figures in sentences that the results of their page do not hold, one line each.

    A page of many results, and one whose result is not there, is not looked at.
    """
    found = []
    for path in filled_pages(root):
        place, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        sources = sources_of(place, text, results)
        if sources:
            found += [f"{place}: {figure}" for figure in unknown(text, sources)]
    return found


def fill_sources(root: Path, results: Results | None = None) -> tuple[list[Path], list[str]]:
    """Fill the pages in place, draw their pictures; returns what was written and what is wrong."""
    results = results or Results(root / "results")
    written, wrong = [], []
    for path in filled_pages(root):
        text = path.read_text(encoding="utf-8")
        try:
            made = Page(path.relative_to(root).as_posix(), results).fill(text)
        except WrongMarker as error:
            wrong.append(str(error))
            continue
        if made != text:
            path.write_text(made, encoding="utf-8", newline="\n")
            written.append(path)
    try:
        written += redraw(results, root / "docs" / "pictures")
    except LookupError as error:
        wrong.append(f"a picture cannot be drawn: {error}")
    return written, wrong
