"""Progress on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Report = Callable[[str, int, int], None]
"""Called with what is being done, how many inputs are done, and how many there are."""


def silent(_what: str, _done: int, _total: int) -> None:
    """No progress shown."""


@contextlib.contextmanager
def bar() -> Iterator[Report]:
    """A bar with rate and time left; plain lines at every tenth where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        last: dict[str, int] = {}

        def line(what: str, done: int, total: int) -> None:
            tenth = 10 * done // max(total, 1)
            if last.get(what) != tenth:
                last[what] = tenth
                console.print(f"{what}: {done} of {total}", highlight=False)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield report
