"""How many dimensions: counts and effective numbers from a spectrum."""

from __future__ import annotations

import numpy as np


def dimension_at(explained: np.ndarray, share: float) -> int | None:
    """Return the fewest components that explain `share`; None if the curve never reaches it.

    >>> dimension_at(np.array([.5, .8, 1.]), .9)
    3
    """
    reached = np.flatnonzero(explained >= share - 1e-12)
    return int(reached[0]) + 1 if len(reached) else None


def effective_rank(eigenvalues: np.ndarray, total: float) -> float:
    """Return `exp(−Σ p ln p)` with `p = λ / total`.

    What a truncated spectrum leaves out counts as one component, which gives a lower bound.
    """
    if total <= 0:
        return 0.0
    p = np.append(eigenvalues, max(total - eigenvalues.sum(), 0.0)) / total
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def participation_ratio(eigenvalues: np.ndarray, total: float) -> float:
    """Return `(Σ λ)² / Σ λ²`.

    The squares of what a truncated spectrum leaves out are negligible: its λ are the smallest.
    """
    squares = float(np.square(eigenvalues).sum())
    return total * total / squares if squares > 0 else 0.0
