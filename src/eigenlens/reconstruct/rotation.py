"""Coordinates in which the first few products already say most of a score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..stats import VectorSums
from .estimator import SiteStatistics

FLOOR = 1e-7
"""Directions with less than this share of the largest variance count as having it: a constant head has none at all."""


@dataclass(frozen=True)
class Moments:
    """Second moment of the scaled queries, mean and covariance of the keys, and both by position, per query head."""

    queries: Tensor  # (H, D, D)
    keys: Tensor  # (H, D, D)
    key_mean: Tensor  # (H, D)
    query_positions: Tensor  # (H, T, D)
    key_positions: Tensor  # (H, S, D)


def moments(statistics: SiteStatistics) -> Moments:
    """Means of a study's sums; every query head has the keys of its key-value head."""
    sums: VectorSums = statistics.need("moments")
    mean = sums.key_first / sums.key_number.clamp_min(1)  # (G, D)
    covariance = sums.key_second / sums.key_number.clamp_min(1) - mean[:, :, None] * mean[:, None, :]

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(statistics.group, 0)

    return Moments(
        queries=sums.query_second / sums.query_number.clamp_min(1),
        keys=spread(covariance),
        key_mean=spread(mean),
        query_positions=sums.query_positions / sums.query_counts.clamp_min(1)[:, None],
        key_positions=spread(sums.key_positions / sums.key_counts.clamp_min(1)[:, None]),
    )


def joint(found: Moments) -> tuple[Tensor, Tensor]:
    """The maps `P_Q, P_K (H, D, D)` with `qᵀk = (P_Qᵀq)·(P_Kᵀk)`, the coordinates in order of what they add to the score.

    With `E[qqᵀ] = AAᵀ`, `Cov(k) = BBᵀ` and `AᵀB = U S Vᵀ`, the first r coordinates of `√S Uᵀ A⁻¹ q` and `√S Vᵀ B⁻¹ k` are
    the rank-r product closest to `qᵀk` in the mean square, for q and k that do not depend on each other. Both have the
    variance `S_i` in coordinate i: the truncation is balanced. Cost: three decompositions of D×D a head, once.
    """
    a, a_inverse = _root(found.queries)
    b, b_inverse = _root(found.keys)
    u, s, vh = torch.linalg.svd(a.mT @ b)
    root = s.sqrt()[:, None, :]
    return a_inverse.mT @ (u * root), b_inverse.mT @ (vh.mT * root)


def principal(found: Moments) -> tuple[Tensor, Tensor]:
    """The principal axes of the keys, largest variance first, as the maps of `joint`; queries have no say in them."""
    vectors = torch.linalg.eigh((found.keys + found.keys.mT) / 2).eigenvectors.flip(-1)
    return vectors, vectors


def _root(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A square root `A` and its inverse of `AAᵀ` (H, D, D), with a floor under the eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    top = values[:, -1:]
    values = values.clamp_min(0).maximum(FLOOR * torch.where(top > 0, top, torch.ones_like(top)))
    return vectors * values.sqrt()[:, None, :], (vectors / values.sqrt()[:, None, :]).mT
