"""Explained variance on held-out documents, with an interval over documents."""

from __future__ import annotations

import numpy as np


def explained_with_interval(
    energy: np.ndarray, total: np.ndarray, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the held-out variance `Σ_g E_g(k) / Σ_g T_g` in k components, with its interval.

    It is a share. `energy (G, …, m)` per group of documents and component, `total (G, …)`; returns
    three arrays `(…, m)`. The interval is a jackknife: each group of documents is left out once,
    with Student's t on G − 1 degrees of freedom. With a single group there is no interval (NaN).
    """
    from scipy.special import stdtrit  # Student's quantile; scipy is slow to load

    curves, totals = energy.cumsum(-1), total[..., None]
    share = np.clip(_ratio(curves.sum(0), totals.sum(0)), 0, 1)
    used = int((total.reshape(len(total), -1).sum(1) > 0).sum())
    if used < 2:
        return share, np.full_like(share, np.nan), np.full_like(share, np.nan)
    groups = len(total)
    without = _ratio(curves.sum(0)[None] - curves, totals.sum(0)[None] - totals)  # (G, …, m)
    spread = np.sqrt((groups - 1) / groups * np.square(without - without.mean(0)).sum(0))
    half = stdtrit(used - 1, 0.5 + level / 2) * spread
    return share, np.clip(share - half, 0, 1), np.clip(share + half, 0, 1)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole > 0)
