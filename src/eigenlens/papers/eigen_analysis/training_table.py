"""The runs of a training experiment, put together: quality, cost and time of every mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...stats.intervals import t_interval
from .mechanisms import MECHANISMS

COSTS = ("attention_multiply_adds", "model_multiply_adds")


def summary(
    rows: Sequence[dict[str, Any]], times: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row per mechanism, protocol and share: means over seeds.

    `kept` is how much of what full attention gains over the mean row alone is left, `(floor −
    loss)/(floor − full)` with all three tuned alike, seed by seed; its interval is Student's over
    seeds. Costs are relative to full attention.
    """
    groups: dict[tuple[str, str, float], dict[int, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["mechanism"], row["protocol"], row["share"]), {})[row["seed"]] = row
    full, floor = groups["full", "tuned", 1.0], groups["mean only", "tuned", 0.0]
    taken = {(row["mechanism"], row["share"]): row for row in times}
    table = []
    for (mechanism, protocol, share), by_seed in groups.items():
        members = list(by_seed.values())
        kept = [
            (floor[seed]["loss"] - row["loss"]) / (floor[seed]["loss"] - full[seed]["loss"])
            for seed, row in by_seed.items()
        ]
        mean, low, high = t_interval(kept)
        cost = {key: _mean(members, key) / _mean(list(full.values()), key) for key in COSTS}
        table.append(
            {
                "mechanism": mechanism,
                "protocol": protocol,
                "share": share,
                "seeds": len(members),
                "loss": _mean(members, "loss"),
                "accuracy": _mean(members, "accuracy"),
                "kept": mean,
                "kept_low": low,
                "kept_high": high,
                "attention_cost": cost["attention_multiply_adds"],
                "model_cost": cost["model_multiply_adds"],
                "forward_milliseconds": 1e3 * taken[mechanism, share]["forward_seconds"],
                "step_milliseconds": 1e3 * taken[mechanism, share]["step_seconds"],
                "training_gigaflops": _mean(members, "training_flops") / 1e9,
                "training_seconds": _mean(members, "seconds"),
            }
        )
    order = {name: i for i, name in enumerate(MECHANISMS)}
    return sorted(table, key=lambda row: (order[row["mechanism"]], row["share"], row["protocol"]))


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))
