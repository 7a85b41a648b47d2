"""Kinds of results, and the results of a page by kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..captures import Head, Site
from ..display import listed
from ..errors import EigenlensError
from ..passes.facts import ModelResult
from ..run.charts import save_charts
from ..run.result import Result

if TYPE_CHECKING:
    from .parts import PagePart
    from .views import Page

R = TypeVar("R")
Parts = Iterable[tuple[str, "list[PagePart]"]]
"""Pairs of a section's key and the parts that belong there."""
Lines = Iterable[tuple[str, str]]
"""Pairs of a heading of the summary and its text."""
HeadNumbers = Iterator[tuple[Head | Site, dict[str, Any]]]


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, eq=False)
class PageView:
    """What the page shows of a kind of result."""

    parts: Callable[[Page, Any, int], Parts]
    """The parts of a result; the number is its index among those of its kind."""
    lines: Callable[[Page, Any], Lines]
    """The lines of a result in the summary."""
    summary_rank: int
    """The kind with the lowest rank comes first in the summary."""
    together: Callable[[Page], Parts] = _nothing
    """The parts that show all results of the kind together."""
    head_numbers: Callable[[Any, int], HeadNumbers] = _nothing
    """The numbers of single heads that a result adds to studies of the same weights.

    The number counts the results of this kind and these weights, from 1.
    """


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of result: its name, its class, its nouns, and how the page shows it.

    The page shows kinds that have a `view`, or that stand for other results.
    """

    name: str
    result: type[Any]
    singular: str
    """The noun with its article, such as `a study`."""
    plural: str
    view: PageView | None = None
    stands_for: Callable[[Any], Iterable[Result]] | None = None
    """The results that the page shows in place of this one."""
    identity: Callable[[Any], Hashable] = id
    """Two results with the same identity are shown once."""
    draw_all: Callable[[Any, Path], list[Path]] | None = None
    """Draws all pictures into a folder; without it, only that of `plot` is drawn."""

    @property
    def file(self) -> str:
        """The file that a folder with such a result has."""
        return f"{self.name}.json"

    @property
    def on_page(self) -> bool:
        return self.view is not None or self.stands_for is not None

    def draw(self, result: Any, folder: Path) -> list[Path]:
        """Draw the pictures of a result into a folder; returns the files."""
        if self.draw_all is not None:
            return self.draw_all(result, folder)
        return save_charts({self.name: result.plot()}, folder)


@dataclass
class Results:
    """All results of a page, by kind, in the order they were given."""

    kinds: tuple[Kind, ...]
    """The kinds that a page can show."""
    found: dict[type, list[Any]] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        kind = next((kind for kind in self.kinds if kind.result is type(result)), None)
        if kind is None:
            known = listed([kind.plural for kind in self.kinds])
            raise EigenlensError(f"a report shows {known}, not {result!r}")
        if kind.stands_for is not None:
            for other in kind.stands_for(result):
                self.add(other)
        elif kind.identity(result) not in map(kind.identity, self.of(kind.result)):
            self.found.setdefault(kind.result, []).append(result)

    def of(self, kind: type[R]) -> list[R]:
        """The results of a class."""
        return self.found.get(kind, [])

    @property
    def views(self) -> list[tuple[PageView, list[Any]]]:
        """What the page shows of each kind, and the results of the kind."""
        return [(kind.view, self.of(kind.result)) for kind in self.kinds if kind.view is not None]

    @property
    def all(self) -> list[ModelResult]:
        return [result for _, results in self.views for result in results]


def weights_of(result: ModelResult) -> str | None:
    """The fingerprint of a result's weights, if known.

    It tells which results belong together.
    """
    return result.facts.model.fingerprint
