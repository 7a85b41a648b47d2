"""The rows of the paper's tables, put together from runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def seed_means(found: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The mean of every number over the seeds, and the least and largest of the first."""
    first = [row[next(iter(found[0]))] for row in found]
    means = {key: sum(row[key] for row in found) / len(found) for key in found[0]}
    return {**means, "low": min(first), "high": max(first), "seeds": len(found)}


def means_over_seeds(runs: Sequence[dict[str, Any]], by: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows of all seeds in one, with the means."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in by), []).append(
            {k: x for k, x in run.items() if k not in (*by, "seed")}
        )
    return [{**dict(zip(by, place)), **seed_means(found)} for place, found in groups.items()]


def means_over_starts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """An encoder along its depth, the mean of all random starts in one row."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["weights"], row["attention"], row["depth"]), []).append(row)
    return [
        {
            "weights": weights,
            "attention": attention,
            "depth": depth,
            "models": len(found),
            **{
                key: sum(row[key] for row in found) / len(found)
                for key in ("stable rank", "residual", "cosine")
            },
        }
        for (weights, attention, depth), found in groups.items()
    ]


def side_by_side(
    rows: Sequence[dict[str, Any]], by: tuple[str, ...], across: str, value: str
) -> list[dict[str, Any]]:
    """One row for each place, with a column for each value of `across`."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in by), {})[row[across]] = row[value]
    return [{**dict(zip(by, place)), **found} for place, found in groups.items()]
