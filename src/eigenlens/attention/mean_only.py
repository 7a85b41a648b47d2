"""Attention with every score replaced by its mean: the floor of all estimators."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import EigenlensError
from .call_terms import CallTerms, probabilities
from .contract import Mechanism, Shape


class MeanOnly(Mechanism):
    """`A = softmax(μ)` with the mean row `μ (H, n)` of each head.

    Or with a mean `(H, n, n)` of each pair of positions.

    It uses no query and no key. With a mean row all queries get the same output, at `n d`
    multiply-adds per head. It is made from the scores of a study, so it cannot be made by name.
    """

    name = "mean-only"
    mean: Tensor  # (H, 1 or T, n)

    def __init__(self, mean: Tensor) -> None:
        super().__init__(shape=Shape(mean.shape[0], length=mean.shape[-1]))
        self.register_buffer("mean", (mean[:, None] if mean.ndim == 2 else mean).float())

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        self._fits(q, k, given)
        scores = torch.zeros_like(q @ k.transpose(2, 3)) + self.mean  # formed and overwritten
        allowed = given.allowed(q, k)
        return probabilities(
            scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
        )

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        self._fits(q, k, given)
        allowed = given.allowed(q, k)
        # (B or 1, H, 1 or T, n)
        scores = self.mean if allowed is None else self.mean.masked_fill(~allowed, -torch.inf)
        return (probabilities(scores).to(v.dtype) @ v).expand(-1, -1, q.shape[2], -1)

    def _fits(self, q: Tensor, k: Tensor, given: CallTerms) -> None:
        rows, n = self.mean.shape[1:]
        if given.causal and rows == 1:
            raise EigenlensError("one mean row for all queries cannot be causal")
        if k.shape[2] != n or rows not in (1, q.shape[2]):
            raise EigenlensError(
                f"the mean was made for {n} keys, but there are {q.shape[2]} queries of"
                f" {k.shape[2]} keys"
            )

    def cost(self, n: int, d: int) -> int:
        """The cost of the values, once per mean row."""
        return self.mean.shape[1] * n * d
