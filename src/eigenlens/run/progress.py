"""Progress on standard error."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is.

What is being done is a phrase that a person reads, such as `reading 300 texts`. A new phrase begins
a new stage.
"""


def silent(_what: str, _done: int, _total: int) -> None:
    """No progress shown."""


@dataclass(frozen=True)
class Here:
    """A report that is shown by this process; sent to another one, it is silent there."""

    progress: Progress

    def __call__(self, what: str, done: int, total: int) -> None:
        self.progress(what, done, total)

    def __reduce__(self) -> tuple[type[Here], tuple[Progress]]:
        return Here, (silent,)


@dataclass(frozen=True)
class OneOf:
    """The report of one of several equal pieces of work: all of them are one stage."""

    progress: Progress
    stage: str
    number: int
    """How many pieces are done before this one."""
    pieces: int

    def __call__(self, _what: str, done: int, total: int) -> None:
        self.progress(self.stage, self.number * total + done, self.pieces * total)


def print_line(text: str) -> None:
    """One line that a command prints on standard error, and a notebook does not."""
    logging.getLogger("eigenlens").info(text)


@dataclass
class Rate:
    """Inputs a second and the time left, since the first word of each thing that is done."""

    clock: Callable[[], float] = time.monotonic
    _first: dict[str, tuple[float, int]] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def words(self, what: str, done: int, total: int) -> str:
        """`12.5 per second, 1:20 left`; empty where nothing can be said yet."""
        now = self.clock()
        if done < self._last.get(what, done):  # the same again, such as the next seed of a training
            del self._first[what]
        self._last[what] = done
        begin, before = self._first.setdefault(what, (now, done))
        if now <= begin or done <= before:
            return ""
        rate = (done - before) / (now - begin)
        left = round((total - done) / rate)
        clock = (
            f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
            if left >= 3600
            else f"{left // 60}:{left % 60:02}"
        )
        return f"{rate:.3g} per second, {clock} left"


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """One line that moves, with rate and time left; without a terminal, one line per stage."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console, rate = Console(stderr=True), Rate()
    if not console.is_terminal:
        begun: set[str] = set()

        def line(what: str, done: int, total: int) -> None:
            if what not in begun:
                begun.add(what)
                print(what, file=sys.stderr, flush=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("getting ready", total=None, rate="")

        def progress(what: str, done: int, total: int) -> None:
            shown.update(
                task,
                description=what,
                completed=done,
                total=total,
                rate=rate.words(what, done, total),
            )

        yield progress
