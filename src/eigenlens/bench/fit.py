"""What times at several lengths say: how they grow, and where one falls below another."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np


def exponent(times: Mapping[int, float], start: int = 2048) -> float | None:
    """The slope of log time against log length by least squares, over lengths from `start` on.

    None for fewer than two lengths.

    >>> exponent({2048: 1.0, 4096: 4.0, 8192: 16.0})
    2.0
    """
    lengths = sorted(n for n in times if n >= start)
    if len(lengths) < 2:
        return None
    slope = np.polyfit(np.log2(lengths), np.log2([times[n] for n in lengths]), 1)[0]
    return round(float(slope), 12)


def crossover(times: Mapping[int, float], yardstick: Mapping[int, float]) -> float | None:
    """The length from which on a time stays below the yardstick's.

    Between two lengths it is where the logarithms meet. It is the first common length where the
    time is below at all of them, and None where it is not below at the last.

    >>> round(crossover({512: 4.0, 1024: 4.0, 2048: 4.0}, {512: 2.0, 1024: 8.0, 2048: 32.0}))
    724
    """
    lengths = sorted(set(times) & set(yardstick))
    gaps = [math.log(times[n] / yardstick[n]) for n in lengths]
    above = [i for i, gap in enumerate(gaps) if gap >= 0]
    if not lengths or above[-1:] == [len(lengths) - 1]:
        return None
    if not above:
        return float(lengths[0])
    i = above[-1]
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return float(lengths[i] * (lengths[i + 1] / lengths[i]) ** share)
