"""How two columns of a table depend on each other.

The exponent of a power law, and the rank correlation with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def power_law_exponent(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> float:
    """The exponent p of `y ~ xᵖ`, the slope of `ln y` in `ln x` by least squares.

    NaN for fewer than two rows.

    >>> round(power_law_exponent([{"n": 1, "t": 3}, {"n": 2, "t": 12}], "n", "t"), 9)
    2.0
    """
    if len(rows) < 2:
        return math.nan
    at = np.log([[row[x], row[y]] for row in rows])  # (n, 2)
    at -= at.mean(0)
    return float(at[:, 0] @ at[:, 1] / (at[:, 0] @ at[:, 0]))


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's correlation: that of ranks, where equal values share the mean of their ranks.

    NaN if one side is constant.

    >>> round(rank_correlation([1, 2, 3, 4], [10, 30, 20, 40]), 9)
    0.8
    """
    a, b = (ranks - ranks.mean() for ranks in map(_ranks, (left, right)))
    size = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / size if size else math.nan


def rank_correlation_interval(
    left: Sequence[float], right: Sequence[float], draws: int = 2000
) -> tuple[float, float]:
    """The 95 % bootstrap interval of the rank correlation.

    It is taken over `draws` samples of pairs with replacement; samples in which one side is
    constant are left out.
    """
    generator = np.random.default_rng(0)
    a, b = np.asarray(left), np.asarray(right)
    chosen = (generator.integers(len(a), size=len(a)) for _ in range(draws))
    found = [rank_correlation(a[at].tolist(), b[at].tolist()) for at in chosen]
    low, high = np.nanquantile(found, [0.025, 0.975])
    return float(low), float(high)


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 0, (n,)."""
    x = np.asarray(values, dtype=float)
    return (x[:, None] > x).sum(1) + ((x[:, None] == x).sum(1) - 1) / 2
