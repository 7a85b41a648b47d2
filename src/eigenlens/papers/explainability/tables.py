"""Areas under deletion curves as tables: means with intervals, and methods input by input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...stats.intervals import bootstrap_interval

ORDERS = ("positive", "negative")


def area_rows(task: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per method: areas in both orders with intervals, and those of the share right."""
    rows = []
    for method, areas in found["areas"].items():
        row: dict[str, Any] = {"task": task, "method": method}
        for order in ORDERS:
            row[order], row[f"{order} low"], row[f"{order} high"] = bootstrap_interval(areas[order])
        for order in ORDERS:
            row[f"{order}, accuracy"] = float(np.mean(found["right"][method][order]))
        rows.append({**row, "inputs": len(areas[ORDERS[0]])})
    return rows


def pair_rows(task: str, found: Mapping[str, Any], method: str) -> list[dict[str, Any]]:
    """One row per other method: the mean difference of areas, above 0 where `method` is better.

    Positive order: other − method, since a small area is good. Negative order: method − other.
    """
    rows = []
    own = {order: np.asarray(found["areas"][method][order]) for order in ORDERS}
    for other, areas in found["areas"].items():
        if other == method:
            continue
        for order in ORDERS:
            gain = (np.asarray(areas[order]) - own[order]) * (1 if order == "positive" else -1)
            mean, low, high = bootstrap_interval(gain.tolist())
            rows.append(
                {
                    "task": task,
                    "method": method,
                    "against": other,
                    "order": order,
                    "gain": mean,
                    "low": low,
                    "high": high,
                    "inputs won": float((gain > 0).mean()),
                }
            )
    return rows
