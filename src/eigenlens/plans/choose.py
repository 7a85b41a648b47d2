"""Choosing estimators: the cheapest that is good enough, or the best within a budget."""

from __future__ import annotations

import numpy as np


def within_error(errors: np.ndarray, work: np.ndarray, target: float) -> np.ndarray:
    """The cheapest of C candidates with an error of at most `target`, for each of N heads.

    (C, N), (C, N) → (N,). At least one candidate must reach every target, such as exact scores,
    whose error is 0.
    """
    return np.where(errors <= target, work, np.inf).argmin(0)


def on_hull(errors: np.ndarray, work: np.ndarray, budget: float) -> np.ndarray:
    """The candidates on the lower convex hulls with the least summed error of N heads, (N,).

    Their mean work is within the budget: at a price λ each head takes its own `argmin error +
    λ·work`, and λ is bisected until the mean work fits. If nothing fits, every head takes its
    cheapest candidate. O(CN log).
    """
    columns = np.arange(errors.shape[1])
    if work.min(0).mean() > budget:
        return work.argmin(0)
    low, high = 0.0, 1e6 * max(1.0, float(errors[np.isfinite(errors)].max()))
    chosen = _at_price(errors, work, high)
    for _ in range(200):
        price = (low + high) / 2 if low else high / 2
        trial = _at_price(errors, work, price)
        if work[trial, columns].mean() <= budget:
            chosen, high = trial, price
        else:
            low = price
        if high - low < 1e-9 * high or high < 1e-12:
            break
    return chosen


def within_budget(errors: np.ndarray, work: np.ndarray, budget: float) -> np.ndarray:
    """The candidates with the least summed error of N heads at a mean work within `budget`, (N,).

    What `on_hull` leaves of the budget is spent on single steps, those that lower the error most
    for their work first. O(CN) per step.
    """
    columns = np.arange(errors.shape[1])
    chosen = on_hull(errors, work, budget)
    left = budget * len(columns) - work[chosen, columns].sum()
    while True:
        more = work - work[chosen, columns]
        gain = errors[chosen, columns] - errors
        worth = np.divide(
            gain, more, out=np.zeros_like(gain), where=(gain > 0) & (more > 1e-12) & (more <= left)
        )
        best = int(worth.argmax())
        if worth.flat[best] <= 0:
            return chosen
        candidate, head = np.unravel_index(best, worth.shape)
        left -= more[candidate, head]
        chosen = chosen.copy()
        chosen[head] = candidate


def _at_price(errors: np.ndarray, work: np.ndarray, price: float) -> np.ndarray:
    return (errors + price * work).argmin(0)
