"""Names that a user gives: one or several, and the error for an unknown one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from .errors import EigenlensError

V = TypeVar("V")
_DIGITS = re.compile(r"\d")


def split_names(given: str | Iterable[str]) -> list[str]:
    """Return names as a list, from a list or from one text with commas.

    >>> split_names("rows, moments"), split_names("sinks"), split_names(("rows",))
    (['rows', 'moments'], ['sinks'], ['rows'])
    """
    return (
        [name.strip() for name in given.split(",") if name.strip()]
        if isinstance(given, str)
        else list(given)
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is most similar; empty if none is similar.

    >>> did_you_mean("minillm", ["minilm", "smollm2"])
    ' (did you mean minilm?)'
    """
    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    if not found or (
        found[0] != name.lower() and _DIGITS.sub("", found[0]) == _DIGITS.sub("", name.lower())
    ):
        return ""  # of places that differ in a number, none is likelier
    return f" (did you mean {by_lower[found[0]]}?)"


def unknown_name(
    what: str, name: object, known: Iterable[str], guess: bool = True
) -> EigenlensError:
    """Return the error for an unknown name; with `guess` it suggests the most similar one."""
    listed = [str(one) for one in known]
    hint = did_you_mean(str(name), listed) if guess else ""
    return EigenlensError(f"no {what} {name!r}{hint}; there are {', '.join(listed) or 'none'}")


class Named(dict[str, V]):
    """A dictionary whose error for an unknown name lists the known ones; `what` they are."""

    def __init__(self, what: str, content: Mapping[str, V]) -> None:
        super().__init__(content)
        self.what = what

    def __missing__(self, name: str) -> V:
        raise unknown_name(self.what, name, self)
