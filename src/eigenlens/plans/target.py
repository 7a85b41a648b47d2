"""The target of a plan, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def target_label(target: Mapping[str, Any]) -> str:
    """The target in words: `budget 0.25`, or `window attention` for a mechanism."""
    if "attention" in target:
        return f"{target['attention']} attention"
    numbers = {name: value for name, value in target.items() if isinstance(value, int | float)}
    return ", ".join(f"{name} {value:g}" for name, value in numbers.items())
