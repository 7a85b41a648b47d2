"""What a plan was made for, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def target_label(target: Mapping[str, Any]) -> str:
    """Such as `budget 0.25`; `window attention` where a mechanism took the place of a plan."""
    if "attention" in target:
        return f"{target['attention']} attention"
    numbers = {name: value for name, value in target.items() if isinstance(value, int | float)}
    return ", ".join(f"{name} {value:g}" for name, value in numbers.items())
