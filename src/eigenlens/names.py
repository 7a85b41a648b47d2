"""Names as a user gives them: one or several, and what a wrong one is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from .errors import EigenlensError

V = TypeVar("V")
_DIGITS = re.compile(r"\d")


def several(given: str | Iterable[str]) -> list[str]:
    """Names as a list, or as one text with commas.

    >>> several("rows, moments"), several("sinks"), several(("rows",))
    (['rows', 'moments'], ['sinks'], ['rows'])
    """
    return (
        [name.strip() for name in given.split(",") if name.strip()]
        if isinstance(given, str)
        else list(given)
    )


def near(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most like this one; nothing where none is.

    >>> near("minillm", ["minilm", "smollm2"])
    ' (did you mean minilm?)'
    """
    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    if not found or (
        found[0] != name.lower() and _DIGITS.sub("", found[0]) == _DIGITS.sub("", name.lower())
    ):
        return ""  # of places that differ in a number, none is likelier
    return f" (did you mean {by_lower[found[0]]}?)"


def unknown(what: str, name: object, known: Iterable[str], guess: bool = True) -> EigenlensError:
    """What is said of a name that is none of the known ones; `guess` at the one that was meant."""
    listed = [str(one) for one in known]
    hint = near(str(name), listed) if guess else ""
    return EigenlensError(f"no {what} {name!r}{hint}; there are {', '.join(listed) or 'none'}")


class Named(dict[str, V]):
    """A dictionary that says, of a name it does not have, which names it has; `what` they are."""

    def __init__(self, what: str, content: Mapping[str, V]) -> None:
        super().__init__(content)
        self.what = what

    def __missing__(self, name: str) -> V:
        raise unknown(self.what, name, self)
