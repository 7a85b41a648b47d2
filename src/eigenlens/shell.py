"""Commands and options as a user gives them."""

from __future__ import annotations

import shlex
from pathlib import Path


def command(*parts: str | Path) -> str:
    """Return an `eigenlens` command, quoted for a shell; a path never looks like an option.

    >>> command("show", Path("my study"))
    "eigenlens show 'my study'"
    >>> command("show", Path("-x"))
    'eigenlens show ./-x'
    """
    return shlex.join(
        ["eigenlens", *(_path(part) if isinstance(part, Path) else part for part in parts)]
    )


def option(name: str, value: object = True) -> str:
    """Write an option as in a Python call and as in a command; `None` leaves out its value.

    >>> option("overwrite"), option("max_length", None)
    ('overwrite=True (--overwrite)', 'max_length (--max-length)')
    >>> option("budget", 0.25), option("only", "rows,moments")
    ('budget=0.25 (--budget 0.25)', "only='rows,moments' (--only rows,moments)")
    """
    given = f"--{name.replace('_', '-')}"
    if value is None:
        return f"{name} ({given})"
    return f"{name}={value!r} ({given if value is True else f'{given} {value}'})"


STORED_AS = {
    "max_length": "length",
    "max_inputs": "inputs",
    "padding": "pad",
    "matrix_memory": "matrix_gigabytes",
    "batch_size": "batch",
    "shard_size": "shard",
}
"""Options that files store under another name."""
_STORED_OPTIONS = {
    **{stored: name for name, stored in STORED_AS.items()},
    **dict.fromkeys(["held_out", "seed", "of", "only", "before_rope", "rank", "float64"]),
    **dict.fromkeys(["depth_every", "diagnostics_every", "thresholds", "paths", "bounds", "by"]),
}


def stored_option(key: str) -> str:
    """Name a stored key the way a user gives it: as an option, or a fact such as the model.

    >>> stored_option("pad"), stored_option("seed"), stored_option("weights")
    ('padding (--padding)', 'seed (--seed)', 'weights')
    """
    if key not in _STORED_OPTIONS:
        return key.replace("_", " ")
    return option(_STORED_OPTIONS[key] or key, None)


def _path(path: Path) -> str:
    return f"./{path}" if str(path).startswith("-") else str(path)
