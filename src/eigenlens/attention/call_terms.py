"""The terms of a call besides queries, keys and values: which pairs it allows, and the stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CallTerms:
    """The terms of one call, for T queries of S keys.

    `causal`: a query sees no later key; if there are fewer queries than keys, they are the last
    ones. `keys` (B, S) and `queries` (B, T) are True at tokens and False at padding. `pairs`, which
    broadcasts to (B, H, T, S), is any other mask: True where a query may look, or numbers added to
    the scores. `x` (B, T, C) is the stream that queries, keys and values were made from, for
    mechanisms that read it.
    """

    scale: float
    causal: bool = False
    keys: Tensor | None = None
    queries: Tensor | None = None
    pairs: Tensor | None = None
    x: Tensor | None = None

    def allowed(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Return where a query may look, (B or 1, H or 1, T or 1, S) bool; None is everywhere."""
        found = None if self.keys is None else self.keys[:, None, None, :]
        if self.causal:
            T, S = q.shape[2], k.shape[2]
            before = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
            found = before[None, None] if found is None else found & before
        if self.pairs is not None and self.pairs.dtype == torch.bool:
            found = self.pairs if found is None else found & self.pairs
        return found

    @property
    def bias(self) -> Tensor | None:
        """Return the numbers that the mask adds to the scores, if it has any."""
        return self.pairs if self.pairs is not None and self.pairs.dtype != torch.bool else None

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return `QKᵀ` times the scale plus biases, −∞ where a query may not look: (B, H, T, S)."""
        scores = q @ k.transpose(2, 3) * self.scale
        if self.bias is not None:
            scores = scores + self.bias
        allowed = self.allowed(q, k)
        return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def probabilities(scores: Tensor, dim: int = -1) -> Tensor:
    """Softmax of scores of which some are −∞.

    A row with only −∞ becomes zero, with finite gradients.
    """
    empty = (scores == -torch.inf).all(dim, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(dim).masked_fill(empty, 0.0)
