"""Check values from a file, a command line or a caller against the types that are expected."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import EigenlensError


def check_fields(made: Any) -> None:
    """Refuse a dataclass that has a field of the wrong type."""
    check_values(type(made), {field.name: getattr(made, field.name) for field in fields(made)})


def check_values(kind: type, values: Mapping[str, Any]) -> None:
    """Refuse wrong values before a dataclass is made, so that its own checks can trust types."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        if not fits_type(value, hints[name]):
            raise EigenlensError(f"{name} must be {describe_type(hints[name])}, not {value!r}")


def fits_type(value: Any, hint: Any) -> bool:
    """Return whether a value fits a type; an integer is also a number, True is neither.

    >>> fits_type(3, int | None), fits_type(True, int), fits_type(1, float)
    (True, False, True)
    """
    if hint is Any:
        return True
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits_type(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if origin is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if origin in (tuple, list, Sequence):
        return isinstance(value, list | tuple) and all(
            fits_type(item, inner[0]) for item in value if inner
        )
    if origin is Mapping:
        return isinstance(value, dict) and all(
            fits_type(item, inner[1]) for item in value.values() if inner
        )
    return isinstance(value, str if origin is Path else origin)


WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Path: "a text",
    Mapping: "a table",
}


def describe_type(hint: Any) -> str:
    """Describe a type in words.

    >>> describe_type(int | None)
    'a whole number'
    """
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(
            dict.fromkeys(describe_type(one) for one in inner if one is not type(None))
        )
    if origin is Literal:
        return " or ".join(repr(one) for one in inner)
    if origin in (tuple, list, Sequence):
        return "a list" + (
            f" in which each entry is {describe_type(inner[0])}"
            if inner and inner[0] is not Any
            else ""
        )
    return WORDS.get(origin, str(origin))
