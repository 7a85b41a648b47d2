"""Full attention, with which every other mechanism is compared (arXiv 1706.03762)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .call_terms import CallTerms, probabilities
from .contract import Mechanism
from .registry import mechanism


def attend(q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
    """Softmax attention under the terms of a call, by torch's own kernel.

    Zero for a query that sees no key.
    """
    D, E = q.shape[3], v.shape[3]
    if D < E:  # the kernel that holds no T × S matrix wants one width; zeros change no score
        q, k = (F.pad(t, (0, E - D)) for t in (q, k))
    elif E < D:
        v = F.pad(v, (0, D - E))
    if (
        given.pairs is None
        and given.keys is None
        and (not given.causal or q.shape[2] == k.shape[2])
    ):
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=given.causal and q.shape[2] > 1, scale=given.scale
        )
    else:
        mask, bias = given.allowed(q, k), given.bias
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, -float("inf"))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=given.scale)
    return out[..., :E]


@mechanism("softmax", "full", letter="F")
class Softmax(Mechanism):
    """`A = softmax(QKᵀ/√d)`, by torch's own kernel.

    >>> Softmax()(q, k, v, causal=True).shape  # (B, H, T, E)
    """

    takes_pairs = True

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        return probabilities(given.scores(q, k))

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        return attend(q, k, v, given)

    def cost(self, n: int, d: int) -> int:
        """`n²d` for the scores, `n²d` for the values."""
        return 2 * n * n * d
