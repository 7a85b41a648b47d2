"""Schemas of the records in result files.

A file may have been damaged or edited, so what is read from it is checked before it is used.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from ..hints import describe_type, fits_type

LARGEST = sys.float_info.max


@dataclass(frozen=True)
class NumberSchema:
    """A number from `least` to `most`, finite unless `finite` is false.

    `integer` asks for an integer.

    True and False are not numbers here. An integer beyond the range of floats is refused, too: no
    float holds it, and a message that shows it would be hundreds of digits long.
    """

    least: float = -LARGEST
    most: float = LARGEST
    integer: bool = False
    finite: bool = True

    def holds(self, value: Any) -> bool:
        kind = int if self.integer else int | float
        if not self.finite and isinstance(value, float):
            return True
        return (
            isinstance(value, kind)
            and not isinstance(value, bool)
            and self.least <= value <= self.most
        )

    def __str__(self) -> str:
        return f"a {'whole ' if self.integer else ''}number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class TableSchema:
    """A table with any keys; every entry has the schema `entry`."""

    entry: Any


NUMBER = NumberSchema()
MEASURED = NumberSchema(finite=False)
"""A measured number, which may be NaN or infinite."""
COUNT = NumberSchema(0, 2**53, integer=True)
LAYER = NumberSchema(0, 99_999, integer=True)
"""The number of a layer or head; bounded, because pictures reserve a place for each."""
SHARE = NumberSchema(0)
PLAIN = (MEASURED, bool, str, None)
"""A cell of a table."""


def check_schema(value: Any, schema: Any, where: str) -> None:
    """Raise a `ValueError` or `KeyError` that names the first place that breaks `schema`.

    A schema is one of
      a dict of keys and their schemas: a key `name?` may be missing, further keys are allowed
      a list of one schema, which every entry has
      a tuple of schemas, of which one is enough
      a `NumberSchema`, a `TableSchema`, None, or a type

    >>> schema = {"name": str, "sizes": [COUNT], "note?": (str, None)}
    >>> check_schema({"name": "x", "sizes": [1, 2]}, schema, "it")
    """
    if isinstance(schema, dict):
        _check_kind(value, dict, "a table", where)
        for key, inner in schema.items():
            name = key.removesuffix("?")
            if name in value:
                check_schema(value[name], inner, f"{where}.{name}")
            elif name == key:
                missing = KeyError(name)
                missing.add_note(f"of {where}")
                raise missing
    elif isinstance(schema, TableSchema):
        _check_kind(value, dict, "a table", where)
        for key, entry in value.items():
            check_schema(entry, schema.entry, f"{where}.{key[:40]}")
    elif isinstance(schema, list):
        _check_kind(value, list, "a list", where)
        for i, entry in enumerate(value):
            check_schema(entry, schema[0], f"{where}[{i}]")
    elif isinstance(schema, tuple):
        _check_any(value, schema, where)
    elif isinstance(schema, NumberSchema):
        if not schema.holds(value):
            raise ValueError(f"{where} must be {schema}, not {str(value)[:40]!r}")
    elif not (value is None if schema is None else fits_type(value, schema)):
        wanted = "nothing" if schema is None else describe_type(schema)
        raise ValueError(f"{where} must be {wanted}, not {str(value)[:40]!r}")


def _check_kind(value: Any, kind: type, called: str, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where} must be {called}, not {str(value)[:40]!r}")


def _check_any(value: Any, schemas: tuple[Any, ...], where: str) -> None:
    reason: Exception = ValueError(f"{where} has no schema")
    for schema in schemas:
        try:
            check_schema(value, schema, where)
        except (ValueError, KeyError) as error:
            reason = error
        else:
            return
    raise reason
