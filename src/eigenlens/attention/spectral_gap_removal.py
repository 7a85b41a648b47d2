"""Attention without its outlier (arXiv 2410.07799): what all queries have in common is removed.

A softmax pattern over T keys has one singular value near 1, and the others are of the order of
T^(−1/2). The outlier belongs to the uniform matrix, which gives every query the mean of all values.
Under a causal mask, and wherever else a query does not see every key, the part removed is uniform
over the keys that it sees (our extension; the paper has no masks).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .call_terms import CallTerms, probabilities
from .contract import Mechanism
from .registry import mechanism
from .softmax import attend


@mechanism("spectral-gap-removal")
class SpectralGapRemoval(Mechanism):
    """`A⊥ = softmax(QKᵀ/√d) − 11ᵀ/S`; for a query that sees only n keys, minus `1/n` at these.

    Rows sum to 0. The fast form is torch's own kernel minus the mean of the values that a query
    sees (under a causal mask, their running mean).

    >>> SpectralGapRemoval()(q, k, v, causal=True).shape  # (B, H, T, E)
    """

    takes_pairs = True

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        scores = given.scores(q, k)
        seen = (scores != -torch.inf).to(scores.dtype)
        return probabilities(scores) - seen / seen.sum(3, keepdim=True).clamp_min(1)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        return attend(q, k, v, given) - mean_seen(q, k, v, given)

    def cost(self, n: int, d: int) -> int:
        """The cost of softmax, and of the mean of the values."""
        return 2 * n * n * d + n * d


def mean_seen(q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
    """Return the mean of the values that each query sees, (B, H, T or 1, E).

    Zero if it sees none.
    """
    if given.pairs is not None:
        seen = given.allowed(q, k)
        if given.bias is not None:
            open_ = given.bias != -torch.inf
            seen = open_ if seen is None else seen & open_
        # equal scores: the mean
        return attend(torch.zeros_like(q), torch.zeros_like(k), v, CallTerms(1.0, pairs=seen))
    T, S = q.shape[2], k.shape[2]
    count = torch.ones(1, 1, S, 1, dtype=v.dtype, device=v.device)
    if given.keys is not None:
        count = given.keys[:, None, :, None].to(v.dtype)
        v = v * count
    if given.causal:
        return v.cumsum(2)[:, :, S - T :] / count.cumsum(2)[:, :, S - T :].clamp_min(1)
    return v.sum(2, keepdim=True) / count.sum(2, keepdim=True).clamp_min(1)
