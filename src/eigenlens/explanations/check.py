"""The checks of `explanation.json`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from ..run.schema import LARGEST

if TYPE_CHECKING:
    from .result import Explanation

FACTS: dict[str, Any] = {
    "model": dict,
    "data": str,
    "length": int,
    "target": dict,
    "score": int | float,
    "notes": list,
    "versions": dict,
}
"""The facts that every explanation has."""
MORE: dict[str, Any] = {
    "against": str | None,
    "inputs": int | None,
    "grid": list | None,
    "picture": str | None,
    "seconds": int | float | None,
    "created": str | None,
}
"""The facts that an explanation may have."""


def check_explanation(found: Explanation) -> None:
    """Raise a `ValueError` if a record lacks what an explanation needs."""
    if missing := FACTS.keys() - found.stored.keys():
        raise KeyError(*sorted(missing))
    for name, kind in {**FACTS, **MORE}.items():
        _typed(name, found.stored.get(name), kind)
    model, target = found.stored["model"], found.stored["target"]
    words = {
        "model": [model["name"], model["kind"], model["fingerprint"]],
        "target": [target["kind"], target["label"], target["unit"]],
        "notes": found.stored["notes"],
        "versions": [*found.stored["versions"].values()],
    }
    for name, message in words.items():
        for word in message:
            _typed(name, word, str)
    _typed("the position of the target", target.get("position"), int | None)
    number = len(found.tokens)
    if found.read_at is not None and not 0 <= found.read_at < number:
        raise ValueError(f"the target is read at token {found.read_at} of {number}")
    if not all(isinstance(special, bool) for special in found.special):
        raise ValueError("special is not true or false of every token")
    if not number or not found.scores or not all(isinstance(token, str) for token in found.tokens):
        raise ValueError("tokens and methods are needed")
    if len(found.special) != number or any(len(x) != number for x in found.scores.values()):
        raise ValueError(f"not every method has {number} scores")
    for curve in found.deletion:
        _typed("the method of a deletion curve", curve["method"], str)
        _numbers([curve["auc"], *curve["fractions"], *curve["scores"]])
        if len(curve["fractions"]) != len(curve["scores"]) or curve["order"] not in (
            "positive",
            "negative",
        ):
            raise ValueError(f"the deletion curve of {curve['method']} is not complete")
    _numbers([found.stored["score"], *(x for scores in found.scores.values() for x in scores)])
    _numbers([found.stored.get(name) or 0 for name in ("length", "inputs", "seconds")])
    for size in found.stored.get("grid") or []:
        _typed("grid", size, int)
    if found.grid is not None and (min(found.grid) < 1 or math.prod(found.grid) > number):
        raise ValueError(f"a grid of {found.grid} has more patches than there are tokens")
    json.dumps(found.record(), allow_nan=False)  # what is printed as JSON has no NaN anywhere


def _typed(name: str, value: Any, kind: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name} is {str(value)[:40]!r}")


def _numbers(values: list[Any]) -> None:
    """Raise a `ValueError` unless all are finite as floats; a huge integer is not."""
    for x in values:
        if isinstance(x, bool) or not isinstance(x, int | float) or not abs(x) <= LARGEST:
            raise ValueError(f"{str(x)[:40]} is no finite number")
