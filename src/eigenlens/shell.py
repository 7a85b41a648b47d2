"""Commands as they can be pasted into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path


def command(*parts: str | Path) -> str:
    """`eigenlens` with these arguments, each quoted where a shell would take it apart; a path is
    never taken for an option.

    >>> command("show", Path("my study"))
    "eigenlens show 'my study'"
    >>> command("show", Path("-x"))
    'eigenlens show ./-x'
    """
    return shlex.join(
        ["eigenlens", *(_path(part) if isinstance(part, Path) else part for part in parts)]
    )


def _path(path: Path) -> str:
    return f"./{path}" if str(path).startswith("-") else str(path)
