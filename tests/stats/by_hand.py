"""Numbers of rank collapse for one input, in numpy, from their definitions."""

import math

import numpy as np


def by_hand(X, centre=np.mean):
    """The numbers of one input's tokens (n, C), from their definitions."""

    def composite(M):
        return math.sqrt(np.abs(M).sum(0).max() * np.abs(M).sum(1).max())

    s = np.linalg.svd(X, compute_uv=False)
    p = s[s > 0] / s.sum()
    n = len(X)
    pairs = [
        X[i] @ X[j] / np.linalg.norm(X[i]) / np.linalg.norm(X[j])
        for i in range(n)
        for j in range(n)
        if i != j
    ]
    return {
        "residual": composite(X - centre(X, axis=0)) / composite(X),
        "ranks": (
            np.exp(-(p * np.log(p)).sum()),
            (s**2).sum() / s[0] ** 2,
            (s**2).sum() ** 2 / (s**4).sum(),
        ),
        "cosine": np.mean(pairs),
        "high": np.linalg.norm((np.eye(n) - 1 / n) @ X) / np.linalg.norm(X),
    }


def attention_by_hand(P, X):
    n = len(P)
    energy = sum(P[i, j] * np.square(X[i] - X[j]).sum() for i in range(n) for j in range(n)) / 2
    rows = [-sum(p * math.log(p) for p in row if p > 0) for row in P if row.sum() > 0]
    s = np.linalg.svd(P, compute_uv=False)
    return energy, np.mean(rows), s[1] / s[0]
