"""The three centrings, always named, and the scatter of rows in each."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ..stats import RowSums

Centring = Literal["raw", "centred", "row-centred"]
"""What is subtracted from rows before their covariance.

raw: nothing, the second moment. centred: the mean of each key position. row-centred: each row's own
mean over valid keys, which softmax ignores, and then the mean of each key position.
"""
CENTRINGS: tuple[Centring, ...] = get_args(Centring)


def row_mean(sums: RowSums, centring: Centring) -> Tensor:
    """Return the mean of each key over the rows in which it is valid, (H, S); zero for `raw`."""
    if centring == "raw":
        return sums.second.new_zeros(sums.second.shape[:2])
    if not sums.masked:
        first = sums.first[..., 0] / sums.rows.clamp_min(1)
        return first - first.mean(1, keepdim=True) if centring == "row-centred" else first
    masked = sums.first_less_mean if centring == "row-centred" else sums.first
    assert masked is not None
    number = sums.count.diagonal(dim1=1, dim2=2)  # (H or 1, S)
    return masked.diagonal(dim1=1, dim2=2) / number.clamp_min(1)


def row_scatter(sums: RowSums, centring: Centring, mean: Tensor) -> Tensor:
    """Return `Σ (s − μ)(s − μ)ᵀ` over all rows, (H, S, S).

    A pair that is not valid adds nothing, so the sum is never indefinite.

    `mean` (H, S) may come from other rows than `sums`: held-out rows are centred with the mean of
    the fit.
    """
    if centring == "row-centred":
        sums = sums.as_masked() if not sums.masked else sums
        assert sums.second_less_mean is not None and sums.first_less_mean is not None
        second, first = sums.second_less_mean, sums.first_less_mean
    else:
        second, first = sums.second, sums.first
    if centring == "raw":
        scatter = second
    else:
        cross = first * mean[:, None, :]  # first_jk μ_k
        scatter = (
            second
            - cross
            - cross.transpose(1, 2)
            + sums.count * mean[:, :, None] * mean[:, None, :]
        )
    return (scatter + scatter.transpose(1, 2)) / 2


def pool_heads(sums: RowSums) -> RowSums:
    """Return the rows of all heads of a layer as one sample: (H, …) → (1, …)."""
    heads = sums.second.shape[0]
    parts = {name: x.sum(0, keepdim=True) for name, x in sums.tensors().items() if x.ndim}
    if sums.count.shape[0] == 1:
        parts["count"] = sums.count * heads
    return RowSums(rows=sums.rows * heads, **parts)


def normaliser(number: Tensor | float, centring: Centring) -> float:
    """Return the divisor of a scatter: n, or n − 1 if a mean was taken from the same samples."""
    return max(float(torch.as_tensor(number)) - (centring != "raw"), 1.0)
