"""Commands and options as a user gives them."""

from __future__ import annotations

import shlex
from pathlib import Path


def command(*parts: str | Path) -> str:
    """`eigenlens` with these arguments, quoted for a shell; a path is never taken for an option.

    >>> command("show", Path("my study"))
    "eigenlens show 'my study'"
    >>> command("show", Path("-x"))
    'eigenlens show ./-x'
    """
    return shlex.join(
        ["eigenlens", *(_path(part) if isinstance(part, Path) else part for part in parts)]
    )


def option(name: str, value: object = True) -> str:
    """An option as a Python call takes it, and as a command does; `None` names it without a value.

    >>> option("overwrite"), option("max_length", None)
    ('overwrite=True (--overwrite)', 'max_length (--max-length)')
    >>> option("budget", 0.25), option("only", "rows,moments")
    ('budget=0.25 (--budget 0.25)', "only='rows,moments' (--only rows,moments)")
    """
    given = f"--{name.replace('_', '-')}"
    if value is None:
        return f"{name} ({given})"
    return f"{name}={value!r} ({given if value is True else f'{given} {value}'})"


def _path(path: Path) -> str:
    return f"./{path}" if str(path).startswith("-") else str(path)
