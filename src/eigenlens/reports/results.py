"""What a kind of result is, and the results of a page by kind."""

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
"""Keys of sections, and parts that belong there."""
Lines = Iterable[tuple[str, str]]
"""Questions of a reader in a hurry, and answers."""
HeadNumbers = Iterator[tuple[Head | Site, dict[str, Any]]]


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, eq=False)
class PageView:
    """What the page shows of a kind of result."""

    parts: Callable[[Page, Any, int], Parts]
    """Of a result, with its number among those of its kind."""
    lines: Callable[[Page, Any], Lines]
    """Of a result, for the summary."""
    summary_rank: int
    """The kind of the lowest rank comes first in the summary."""
    together: Callable[[Page], Parts] = _nothing
    """Of all results of the kind, side by side."""
    head_numbers: Callable[[Any, int], HeadNumbers] = _nothing
    """What a result knows of single heads, for the studies of its weights.

    The number counts the results of the kind and of these weights, from 1.
    """


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of result: its file, its class, its words, and what is shown of it.

    The page shows those that have a `view`, or that stand for other results.
    """

    name: str
    result: type[Any]
    singular: str
    """With its article."""
    plural: str
    view: PageView | None = None
    stands_for: Callable[[Any], Iterable[Result]] | None = None
    """The results that the page shows in place of this one."""
    identity: Callable[[Any], Hashable] = id
    """Two results with the same identity are shown once."""
    draw_all: Callable[[Any, Path], list[Path]] | None = None
    """Draws into a folder more than the one picture of `plot`."""

    @property
    def file(self) -> str:
        """A folder with this file holds such a result."""
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
    """Those that a page can show."""
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
