"""A value of a result by its path, as the markers of the pages name it. Nothing is evaluated.

claims[3].measured                       the third claim, as the pages number them
tables.gates[gate=G1].first_token        the only row that has this value
mean tables.runs[gate=G1].loss           over all rows that have it: min, max, mean, median,
                                         sum, count
sinks/claims[1].verdict                  of another result than the page's own
"""

import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any

OVER: dict[str, Callable[[list[Any]], Any]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": sum,
    "count": len,
}
STEP = re.compile(r"(?P<name>[^.\[\]]+)(?P<filters>(?:\[[^\]]*\])*)")


class NoValue(LookupError):
    """A path that leads nowhere, in words."""


def value(path: str, root: Mapping[str, Any]) -> Any:
    """What stands at the end of a path."""
    over, _, rest = path.strip().partition(" ")
    if over in OVER:
        found = [item for item in _walk(rest, root) if item is not None]
        if not found and over != "count":
            raise NoValue(f"{path}: no row has it")
        return OVER[over](found)
    found = _walk(path.strip(), root)
    if len(found) != 1:
        raise NoValue(f"{path}: {len(found)} rows have it, not one")
    return found[0]


def rows_where(rows: list[Mapping[str, Any]], conditions: str) -> list[Mapping[str, Any]]:
    """The rows that meet all conditions of `key=value, key=value`."""
    wanted = [part.partition("=") for part in conditions.split(",") if part.strip()]
    for key, _, _ in wanted:
        if rows and not any(key.strip() in row for row in rows):
            raise NoValue(f"no column {key.strip()!r}; there are {', '.join(rows[0])}")
    return [
        row
        for row in rows
        if all(_same(row.get(key.strip()), text.strip()) for key, _, text in wanted)
    ]


def _walk(path: str, root: Mapping[str, Any]) -> list[Any]:
    steps = path.split(".") if "[" not in path else _steps(path)
    found: list[Any] = [root]
    for step in steps:
        parts = STEP.fullmatch(step)
        if parts is None:
            raise NoValue(f"{path}: {step!r} is no step; write name, name[3] or name[key=value]")
        name = parts["name"]
        # a table without a filter stands for all of its rows
        found = [x for item in found for x in (item if isinstance(item, list) else [item])]
        if not all(isinstance(item, Mapping) and name in item for item in found):
            known = ", ".join(found[0]) if found and isinstance(found[0], Mapping) else "no keys"
            raise NoValue(f"{path}: nothing is called {name!r}; there are {known}")
        found = [item[name] for item in found]
        for condition in re.findall(r"\[([^\]]*)\]", parts["filters"]):
            found = _chosen(path, found[0] if len(found) == 1 else found, condition)
    return found


def _steps(path: str) -> list[str]:
    """The parts between dots, those inside of brackets left alone."""
    return re.findall(r"(?:[^.\[\]]|\[[^\]]*\])+", path)


def _chosen(path: str, rows: Any, condition: str) -> list[Any]:
    if not isinstance(rows, list):
        raise NoValue(f"{path}: [{condition}] is asked of what is no list")
    if condition.isdigit():
        if not 1 <= int(condition) <= len(rows):
            raise NoValue(f"{path}: there are {len(rows)}, counted from 1")
        return [rows[int(condition) - 1]]
    return list(rows_where(rows, condition))


def _same(here: Any, text: str) -> bool:
    """Whether a value is the one that a condition names: as text, or as a number."""
    if isinstance(here, bool) or here is None or isinstance(here, str):
        return {True: "yes", False: "no", None: "–"}.get(here, here) == text
    try:
        return float(here) == float(text)
    except (TypeError, ValueError):
        return str(here) == text
