"""A mean and its 95 % interval: by Student's t, or by resampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 4000


def t_interval_of_sums(
    n: float, first: float, second: float
) -> tuple[float, float | None, float | None]:
    """Return the mean of n numbers and its 95 % Student-t interval, from Σm and Σm².

    They are given as `first` and `second`. One number has no interval.
    """
    from scipy.special import stdtrit  # Student's quantile; scipy is slow to load

    mean = first / n
    if n < 2:
        return mean, None, None
    variance = max(second - n * mean * mean, 0.0) / (n - 1)
    half = float(stdtrit(n - 1, 0.975)) * (variance / n) ** 0.5
    return mean, mean - half, mean + half


def t_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean of these numbers and its 95 % Student-t interval; None for one number."""
    return t_interval_of_sums(len(values), sum(values), sum(value * value for value in values))


def bootstrap_interval(values: Sequence[float], draws: int = DRAWS) -> tuple[float, float, float]:
    """Return the mean of these numbers and its 95 % bootstrap interval.

    >>> bootstrap_interval([2.0, 2.0, 2.0])
    (2.0, 2.0, 2.0)
    """
    x = np.asarray(values, dtype=float)
    chosen = np.random.default_rng(0).integers(len(x), size=(draws, len(x)))
    low, high = np.quantile(x[chosen].mean(1), [0.025, 0.975])
    return float(x.mean()), float(low), float(high)
