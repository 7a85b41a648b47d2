"""Softmax that may attend to nothing: one more in the denominator.

arXiv 2309.17453 tries it as the "zero sink".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .call_terms import CallTerms
from .contract import Mechanism
from .registry import mechanism
from .softmax import attend


@mechanism("off-by-one")
class OffByOne(Mechanism):
    """`A_ij = e^{s_ij} / (1 + Σ_j' e^{s_ij'})`.

    It is softmax with one more key, which has score 0 and value zero.

    Rows sum to less than 1. The fast form puts that key before the others and uses torch's own
    kernel, so that the 1 is part of the log-sum-exp.

    >>> OffByOne()(q, k, v).shape  # (B, H, T, E)
    """

    takes_pairs = True

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        return F.pad(given.scores(q, k), (1, 0)).softmax(3)[..., 1:]

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        T, S = q.shape[2], k.shape[2]
        k, v = (F.pad(t, (0, 0, 1, 0)) for t in (k, v))  # (B, H, 1+S, ·)
        if given.causal and T == S and given.keys is None and given.pairs is None:
            # a query for the new key: the mask stays a triangle, which needs no tensor
            first = F.pad(q, (0, 0, 1, 0))
            return attend(first, k, v, CallTerms(given.scale, causal=True))[:, :, 1:]
        keys = None if given.keys is None else F.pad(given.keys, (1, 0), value=True)
        pairs = given.pairs
        if pairs is not None:  # the new key is seen by all, with a bias of 0
            pairs = F.pad(
                pairs.expand(*pairs.shape[:-1], S), (1, 0), value=pairs.dtype == torch.bool
            )
        return attend(q, k, v, CallTerms(given.scale, given.causal, keys, None, pairs))

    def cost(self, n: int, d: int) -> int:
        """`n(n+1)d` for the scores, as many for the values."""
        return 2 * n * (n + 1) * d
