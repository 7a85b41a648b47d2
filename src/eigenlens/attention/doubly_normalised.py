"""Attention that does not explain keys away: normalised over queries first, then over keys.

Under softmax a key that no query favours gets no weight. Normalised over queries first, each key
has a weight of 1 to give, and keeps at least 1/S of it in the end (arXiv 2009.14308). Because of
the step over queries every output depends on all queries, so none of these mechanisms can be
causal; nor do they take other masks of pairs, which may hide a causal one. Padding is left out on
both sides: keys of padding get no weight, and outputs at queries of padding are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms, probabilities
from .contract import Mechanism, Shape
from .registry import mechanism

BLOCK = 256
"""How many queries have their scores in memory at once."""


@mechanism("doubly-normalised", "dnas")
class DoublyNormalised(Mechanism):
    """`ξ_ij = e^{s_ij} / Σ_i' e^{s_i'j}`, then `A_ij = ξ_ij / Σ_j' ξ_ij'`, in logarithms.

    Rows sum to 1 and every column to at least 1/S. The fast form takes the logarithm `g_j` of each
    column's sum in blocks of queries; the rest is softmax of `s_ij − g_j` through torch's own
    kernel. Without gradients it holds no T × S matrix.

    >>> DoublyNormalised()(q, k, v).shape  # (B, H, T, E)
    """

    directions = ("both ways",)

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        return balanced(scores_of_tokens(q, k, given))

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        bias = -column_sums(q, k, given)[:, :, None]  # (B, H, 1, S)
        if given.keys is not None:
            bias = bias.masked_fill(~given.keys[:, None, None], -torch.inf)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=given.scale)
        return _at_tokens(out, given)

    def cost(self, n: int, d: int) -> int:
        """`n²d` for the scores per normalisation, and `n²d` for the values."""
        return 3 * n * n * d


@mechanism("hybrid-normalised", "hnas")
class HybridNormalised(Mechanism):
    """`A = u·softmax + (1−u)·DNAS` with `u = σ(w_h)` learned for each head, ½ at the start.

    Every column sums to at least (1−u)/S. The fast form works on blocks of queries, whose scores
    serve both patterns.

    >>> HybridNormalised(shape=Shape(heads=4))(q, k, v).shape  # (B, 4, T, E)
    """

    directions = ("both ways",)
    own_weights = True

    def __init__(self, settings: object = None, shape: Shape | None = None) -> None:
        super().__init__(settings, shape)
        self.w = nn.Parameter(torch.zeros(self.shape.heads, 1, 1))

    @property
    def u(self) -> Tensor:
        """The share of softmax, (H, 1, 1)."""
        return self.w.sigmoid()

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        s = scores_of_tokens(q, k, given)
        return self.u * probabilities(s) + (1 - self.u) * balanced(s)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        g, outs = column_sums(q, k, given)[:, :, None], []
        for rows in q.split(BLOCK, 2):
            s = given.scores(rows, k)  # (B, H, block, S)
            outs.append((self.u * probabilities(s) + (1 - self.u) * probabilities(s - g)) @ v)
        return _at_tokens(torch.cat(outs, 2), given)

    def cost(self, n: int, d: int) -> int:
        """`n²d` for the scores, twice, and `n²d` for the values."""
        return 3 * n * n * d


@dataclass(frozen=True)
class SinkhornSettings:
    """`iterations`: how often columns and then rows are normalised; 1 is `doubly-normalised`."""

    iterations: int = 3

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise EigenlensError(
                f"iterations of Sinkhorn's normalisation must be at least 1, not {self.iterations}"
            )


@mechanism("sinkhorn")
class Sinkhorn(Mechanism):
    """Sinkhorn attention (arXiv 2110.11773): columns and rows are normalised in turn.

    `A ← A_ij / Σ_i' A_i'j`, then `A ← A_ij / Σ_j' A_ij'`, starting with `A = e^s`, repeatedly.

    With as many queries as keys it converges to a matrix whose rows and columns all sum to 1. The
    fast form keeps the scores as they are and iterates what to subtract from each row and column,
    `A_ij = exp(s_ij − f_i − g_j)`.

    >>> Sinkhorn(SinkhornSettings(iterations=5))(q, k, v).shape  # (B, H, T, E)
    """

    Settings = SinkhornSettings
    directions = ("both ways",)

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        return balanced(scores_of_tokens(q, k, given), self.settings.iterations)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        s = scores_of_tokens(q, k, given)  # (B, H, T, S)
        g = _log_sum(s, 2)
        for _ in range(self.settings.iterations - 1):
            f = _log_sum(s - g, 3)
            g = _log_sum(s - f, 2)
        return probabilities(s - g) @ v

    def cost(self, n: int, d: int) -> int:
        """`n²d` for the scores, `n²d` for the values, and `n²` for each half step."""
        return 2 * n * n * d + 2 * self.settings.iterations * n * n


def scores_of_tokens(q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
    """Return the scores, −∞ where the query or the key is padding: (B, H, T, S)."""
    s = given.scores(q, k)
    return (
        s if given.queries is None else s.masked_fill(~given.queries[:, None, :, None], -torch.inf)
    )


def balanced(s: Tensor, iterations: int = 1) -> Tensor:
    """Normalise scores (…, T, S) over queries, then over keys, `iterations` times.

    Rows and columns of −∞ are zero.

    >>> balanced(torch.zeros(3, 4))[0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    for _ in range(iterations - 1):
        s = s - _log_sum(s, -2)
        s = s - _log_sum(s, -1)
    return probabilities(s - _log_sum(s, -2), -1)


def column_sums(q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
    """Return `g_j = log Σ_i e^{s_ij}` over the queries that are not padding, (B, H, S).

    Computed in blocks of queries; 0 if there is none.
    """
    parts, masks = [], None if given.queries is None else given.queries.split(BLOCK, 1)
    for at, rows in enumerate(q.split(BLOCK, 2)):
        # (B, H, block, S): what keys of padding have does not matter
        s = rows @ k.transpose(2, 3) * given.scale
        if masks is not None:
            s = s.masked_fill(~masks[at][:, None, :, None], -torch.inf)
        parts.append(_log_sum(s, 2, nothing=-torch.inf))
    return _log_sum(torch.cat(parts, 2), 2)[:, :, 0]


def _log_sum(s: Tensor, dim: int, nothing: float = 0.0) -> Tensor:
    """Return `log Σ e^s` along a dimension, which is kept.

    `nothing` if all entries are −∞, with finite gradients.
    """
    empty = (s == -torch.inf).all(dim, keepdim=True)
    return s.masked_fill(empty, 0.0).logsumexp(dim, keepdim=True).masked_fill(empty, nothing)


def _at_tokens(out: Tensor, given: CallTerms) -> Tensor:
    """Set outputs at queries of padding to zero."""
    return out if given.queries is None else out.masked_fill(~given.queries[:, None, :, None], 0.0)
