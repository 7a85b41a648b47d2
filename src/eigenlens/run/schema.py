"""What a record from a file must look like: a file may be damaged, or written by someone else."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from ..hints import describe, fits

LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Number:
    """A number between two bounds, a whole one if asked for, else finite unless `finite` is false;
    true and false are none.

    An integer of hundreds of digits is no number either: it fits no float, and what is printed of
    it would be one long line.
    """

    least: float = -LARGEST
    most: float = LARGEST
    whole: bool = False
    finite: bool = True

    def holds(self, value: Any) -> bool:
        kind = int if self.whole else int | float
        if not self.finite and isinstance(value, float):
            return True
        return (
            isinstance(value, kind)
            and not isinstance(value, bool)
            and self.least <= value <= self.most
        )

    def __str__(self) -> str:
        return f"a {'whole ' if self.whole else ''}number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Table:
    """A table of any keys, each entry of one form."""

    entry: Any


NUMBER = Number()
MEASURED = Number(finite=False)
"""What a run may honestly have measured as NaN or infinite."""
COUNT = Number(0, 2**53, whole=True)
LAYER = Number(0, 99_999, whole=True)
"""A layer or head: what is drawn has a place for each of them."""
SHARE = Number(0)
PLAIN = (MEASURED, bool, str, None)
"""A cell of a table."""


def check_form(value: Any, form: Any, where: str) -> None:
    """Raise a `ValueError`, or `KeyError`, that names the first place where `value` is not of
    `form`.

    A form is a table of keys and their forms (`name?` may be missing, others may be there), a list
    of one form for all entries, a tuple of forms of which one is enough, a `Number`, a `Table`,
    None, or a type.

    >>> form = {"name": str, "sizes": [COUNT], "note?": (str, None)}
    >>> check_form({"name": "x", "sizes": [1, 2]}, form, "it")
    """
    if isinstance(form, dict):
        _check_kind(value, dict, "a table", where)
        for key, inner in form.items():
            name = key.removesuffix("?")
            if name in value:
                check_form(value[name], inner, f"{where}.{name}")
            elif name == key:
                missing = KeyError(name)
                missing.add_note(f"of {where}")
                raise missing
    elif isinstance(form, Table):
        _check_kind(value, dict, "a table", where)
        for key, entry in value.items():
            check_form(entry, form.entry, f"{where}.{key[:40]}")
    elif isinstance(form, list):
        _check_kind(value, list, "a list", where)
        for i, entry in enumerate(value):
            check_form(entry, form[0], f"{where}[{i}]")
    elif isinstance(form, tuple):
        _check_any(value, form, where)
    elif isinstance(form, Number):
        if not form.holds(value):
            raise ValueError(f"{where} is {form}, not {str(value)[:40]!r}")
    elif not (value is None if form is None else fits(value, form)):
        raise ValueError(
            f"{where} is {'nothing' if form is None else describe(form)}, not {str(value)[:40]!r}"
        )


def _check_kind(value: Any, kind: type, called: str, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where} is {called}, not {str(value)[:40]!r}")


def _check_any(value: Any, forms: tuple[Any, ...], where: str) -> None:
    reason: Exception = ValueError(f"{where} has no form")
    for form in forms:
        try:
            check_form(value, form, where)
        except (ValueError, KeyError) as error:
            reason = error
        else:
            return
    raise reason
