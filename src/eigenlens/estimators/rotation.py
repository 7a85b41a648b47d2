"""Coordinates in which the first few products already determine most of a score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.feature_rank import joint_subspace
from ..stats import VectorSums
from .estimator import SiteStatistics


@dataclass(frozen=True)
class Moments:
    """Moments of queries and keys per query head.

    The second moment of the scaled queries, mean and covariance of the keys, and both by position.
    """

    queries: Tensor  # (H, D, D)
    keys: Tensor  # (H, D, D)
    key_mean: Tensor  # (H, D)
    query_positions: Tensor  # (H, T, D)
    key_positions: Tensor  # (H, S, D)


def moments(statistics: SiteStatistics) -> Moments:
    """Return means of a study's sums; every query head gets the keys of its key-value head."""
    sums: VectorSums = statistics.need("moments")
    mean = sums.key_first / sums.key_number.clamp_min(1)  # (G, D)
    covariance = (
        sums.key_second / sums.key_number.clamp_min(1) - mean[:, :, None] * mean[:, None, :]
    )

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
    """Return the maps `P_Q, P_K (H, D, D)` with `qᵀk = (P_Qᵀq)·(P_Kᵀk)`.

    The coordinates are in the order of how much they add to the score.

    With `E[qqᵀ] = AAᵀ`, `Cov(k) = BBᵀ` and `AᵀB = U S Vᵀ`, the first r coordinates of `√S Uᵀ A⁻¹ q`
    and `√S Vᵀ B⁻¹ (k − k̄)` are the rank-r product closest to `q·(k − k̄)` in the mean square

        E‖qᵀ(I − P_Q P_Kᵀ)(k − k̄)‖² = Σ_{c>r} S_c²

    for q and k that do not depend on each other, without a mask. Both have the variance `S_c` in
    coordinate c: the truncation is balanced. It is the optimum of KQ-SVD (arXiv 2512.05916), whose
    objective is `‖Q(I − P_Q P_Kᵀ)Kᵀ‖²_F` over all queries Q and all keys K of the fitted inputs,
    with the mean key taken from K. Cost: three decompositions of D×D per head, once.
    """
    return joint_subspace(found.queries, found.keys, found.queries.shape[-1])


def joint_grouped(found: Moments, group: int) -> tuple[Tensor, Tensor]:
    """Return the maps of `joint` with one pair per `group` of query heads that share their keys.

    The queries of a group are rows of one matrix, so `E[qqᵀ]` is the mean over its heads.
    """
    H = len(found.queries)
    queries = found.queries.unflatten(0, (H // group, group)).mean(1)  # (G, D, D)
    maps = joint_subspace(queries, found.keys[::group], queries.shape[-1])
    to_x, to_y = (x.repeat_interleave(group, 0) for x in maps)
    return to_x, to_y


def principal(found: Moments) -> tuple[Tensor, Tensor]:
    """Return the principal axes of the keys, largest variance first, as maps like those of `joint`.

    They do not depend on the queries.
    """
    vectors = torch.linalg.eigh((found.keys + found.keys.mT) / 2).eigenvectors.flip(-1)
    return vectors, vectors
