"""JSON that a person can compare: keys in their order, short figures, one row per line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eigenlens.run.files import write_text

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
BENCHMARKS = RESULTS / "benchmarks"
MANY = 500
"""A table with more rows names its columns once, so that no file grows beyond a megabyte."""


def rounded(value: Any, digits: int = 6) -> Any:
    """All floats to so many significant digits.

    >>> rounded({"a": [1 / 3, 2, 123456.789, 1e-20 / 3]})
    {'a': [0.333333, 2, 123457.0, 3.33333e-21]}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else value
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list | tuple) else value


def as_text(value: Any, indent: int = 0) -> str:
    """A value as JSON: what holds lists or dictionaries is spread out, every row is one line."""
    inner, outer = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, dict) and (indent == 0 or _holds_containers(value.values())):
        entries = (f"{_line(str(key))}: {as_text(x, indent + 1)}" for key, x in value.items())
        return "{" + ",".join(f"{inner}{entry}" for entry in entries) + outer + "}"
    if isinstance(value, list) and _holds_containers(value):
        return "[" + ",".join(f"{inner}{_line(item)}" for item in value) + outer + "]"
    return _line(value)


def packed(record: dict[str, Any]) -> dict[str, Any]:
    """A result whose long tables name their columns once, as a file holds it."""
    return _with_tables(record, _pack)


def unpacked(record: dict[str, Any]) -> dict[str, Any]:
    """A result whose tables are all lists of rows."""
    return _with_tables(record, _unpack)


def write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, as_text(packed(record)) + "\n")


def read(path: Path) -> dict[str, Any]:
    return unpacked(json.loads(path.read_text(encoding="utf-8")))


def papers(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The results of papers that are there, by name."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def benchmarks(folder: Path = BENCHMARKS) -> dict[str, dict[str, Any]]:
    """The tables of benchmarks that are there, by name."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def _with_tables(record: dict[str, Any], turn: Callable[[Any], Any]) -> dict[str, Any]:
    if "tables" not in record.get("result", {}):
        return record
    tables = {name: turn(rows) for name, rows in record["result"]["tables"].items()}
    return {**record, "result": {**record["result"], "tables": tables}}


def _pack(rows: list[dict[str, Any]]) -> Any:
    if len(rows) <= MANY or any(list(row) != list(rows[0]) for row in rows):
        return rows
    return {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}


def _unpack(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _holds_containers(values: Any) -> bool:
    return any(isinstance(value, dict | list) and value for value in values)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
