"""Which mechanisms take part in a bench: all that are known, or those named, and a user's own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..attention import Mechanism, find, mechanisms
from ..errors import EigenlensError
from ..names import split_names

FULL = "softmax"
"""What all others are held against."""
SMALL: dict[str, dict[str, Any]] = {
    "window": {"window": 8, "sinks": 1},
    "local": {"window": 8},
    "conv": {"kernel": 5, "stride": 2},
    "linformer": {"size": 16},
    "nystrom": {"landmarks": 16},
    "uniform-keys": {"keys": 16},
    "feature-rank": {"rank": 8},
    "performer": {"features": 32},
}
"""Settings for inputs of 64 tokens, where the defaults would amount to full attention."""
MIDDLE: dict[str, dict[str, Any]] = {
    "window": {"window": 32, "sinks": 4},
    "local": {"window": 32},
    "conv": {"kernel": 5, "stride": 2},
    "nystrom": {"landmarks": 32},
    "uniform-keys": {"keys": 32},
}
"""Settings for inputs of 128 tokens."""


def entrants(names: str | Sequence[str] | None = None) -> list[str]:
    """The names of the mechanisms that take part, each once, full attention first."""
    if names is not None and not names:
        raise EigenlensError(f"no mechanism was named; there are {', '.join(sorted(mechanisms()))}")
    found = (
        list(mechanisms()) if names is None else [find(name).name for name in split_names(names)]
    )
    return list(dict.fromkeys(([FULL] if FULL in found else []) + found))


def fits(name: str, causal: bool) -> bool:
    """Whether a mechanism runs in a direction."""
    return ("causal" if causal else "both ways") in find(name).directions


def ours(kind: type[Mechanism]) -> bool:
    """Whether a mechanism is the package's own, and not from a user's file."""
    return kind.__module__.startswith("eigenlens.")


def settings_for(name: str, of: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a mechanism, as far as it has settings of those names."""
    known = {field.name for field in fields(find(name).Settings)}
    return {key: value for key, value in of.get(name, {}).items() if key in known}


def load_file(path: str | Path) -> list[str]:
    """Run a user's Python file that makes mechanisms known with `@mechanism("name")`.

    Returns the names it added.

    >>> load_file("mine.py")
    ['mine']
    """
    path = Path(path)
    if not path.is_file():
        raise EigenlensError(
            f"no file {path}; give a Python file that makes a mechanism known with"
            ' @mechanism("name")'
        )
    before = mechanisms()
    spec = importlib.util.spec_from_file_location(f"eigenlens_bench_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise EigenlensError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look their module up
    try:
        spec.loader.exec_module(module)
    except EigenlensError:
        raise
    except (Exception, SystemExit) as error:
        raise EigenlensError(f"{path} does not run: {type(error).__name__}: {error}") from error
    added = [name for name, kind in mechanisms().items() if before.get(name) is not kind]
    if not added:
        raise EigenlensError(
            f'{path} makes no mechanism known; put @mechanism("name") over its class'
        )
    return added
