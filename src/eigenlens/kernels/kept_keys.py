"""Which keys every block of queries attends to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class KeptKeys:
    """The keys of every unit: a block of `block` queries of one head.

    Query i of block I attends to the listed keys, to the keys of a range, and, if `causal`, to the
    keys of its own block up to i. Listed keys lie outside the range and, if causal, before the
    block. Keys that are padding may lie in a range; whoever attends leaves them out. What is
    dropped may be put back in the mean: `out ← (1 − weight) out + weight · mean`. Or it is pooled:
    of every `group` keys in a row (in a causal call before the range), the n that are not kept are
    attended as one key, their mean. It has their mean value, and counts n times in the softmax.

    The queries of `exact` attend to every key that they may see, whatever their block keeps.

    Tokens may be taken in an `order (T,)` int64 (None: as they come): blocks, ranges and keys are
    then places in it. Queries, keys, values and outputs stand as the model has them.

    Shapes: `ranges (B, H, N, 2)`, from and up to; `keys (B, H, N, K)`, of which the first `counts
    (B, H, N)` are meant; `mean (B, H, N, E)` and `weight (B, H, N)`, or None; `pooled (H,)`
    bool says which heads pool; None: none does; `exact (B, 2)` int32, from and up to; None: none.
    """

    block: int
    causal: bool
    ranges: Tensor
    keys: Tensor
    counts: Tensor
    mean: Tensor | None = None
    weight: Tensor | None = None
    pooled: Tensor | None = None
    group: int = 64
    order: Tensor | None = None
    exact: Tensor | None = None

    def in_order(self, valid: Tensor | None) -> Tensor | None:
        """Which tokens are no padding, `(B, T)`, by their place."""
        if valid is None:
            return None
        return valid.contiguous() if self.order is None else valid[:, self.order]

    def rows_in_order(self, x: Tensor) -> Tensor:
        """Rows `(B, H, T, E)` by their place."""
        return x if self.order is None else _taken(x, self.order)

    def as_they_came(self, x: Tensor) -> Tensor:
        """Rows `(B, H, T, E)` back from their places."""
        return x if self.order is None else _taken(x, self.order.argsort())

    def exact_queries(self, T: int) -> Tensor:
        """Which queries attend to every key, `(B, T)` bool, by their place."""
        place = torch.arange(T, device=self.counts.device)
        if self.exact is None:
            return torch.zeros(len(self.counts), T, dtype=torch.bool, device=place.device)
        return (place >= self.exact[:, :1]) & (place < self.exact[:, 1:])

    def dropped_of_queries(self, T: int) -> tuple[Tensor, Tensor] | None:
        """The mean `(B, H, T, E)` and its weight `(B, H, T, 1)` for every query, as they came."""
        if self.mean is None or self.weight is None:
            return None
        block = torch.arange(T, device=self.counts.device) // self.block
        block = block if self.order is None else block[self.order.argsort()]
        exact = self.as_they_came(self.exact_queries(T)[:, None, :, None])
        return self.mean[:, :, block], self.weight[:, :, block, None].masked_fill(exact, 0.0)

    @property
    def past(self) -> Tensor:
        """How many keys every unit has without its own block, `(B, H, N)`."""
        return self.counts + self.ranges[..., 1] - self.ranges[..., 0]

    def pairs(self, queries: int) -> Tensor:
        """How many pairs each head computes, summed over inputs, `(H,)` float64.

        `queries` is the length; the last block may be shorter than the others. Every group of a
        pooled head counts, also one that is wholly kept.
        """
        N = self.counts.shape[2]
        sizes = torch.full((N,), self.block, dtype=torch.float64, device=self.counts.device)
        sizes[-1] = queries - (N - 1) * self.block
        own = (sizes * (sizes + 1) / 2).sum() * len(self.counts) if self.causal else 0.0
        spare = N * self.block - queries
        exact = torch.nn.functional.pad(self.exact_queries(queries), (0, spare))
        exact = exact.unflatten(1, (N, self.block)).sum(2)[:, None]  # (B, 1, N)
        past = self.past.double()
        whole = self.ranges[..., 1] if self.causal else torch.full_like(self.counts, queries)
        if self.pooled is not None:
            end = self.ranges[..., 0] if self.causal else whole
            groups = (end + self.group - 1) // self.group
            past = past + groups * self.pooled[:, None]
        return (past * (sizes - exact) + whole * exact).sum((0, 2)) + own

    def listed_or_near(self, S: int) -> Tensor:
        """The keys of every unit without its own block, `(B, H, N, S)` bool."""
        place = torch.arange(S, device=self.keys.device)
        kept = (place >= self.ranges[..., :1]) & (place < self.ranges[..., 1:])  # (B, H, N, S)
        meant = torch.arange(self.keys.shape[3], device=self.keys.device) < self.counts[..., None]
        listed = torch.where(meant, self.keys, S).long()  # what is not meant goes into a spare key
        spare = torch.zeros(*kept.shape[:3], S + 1, dtype=torch.bool, device=kept.device)
        return kept | spare.scatter_(3, listed, True)[..., :S]

    def mask(self, T: int, S: int) -> Tensor:
        """The pairs that are attended one by one, `(B, H, T, S)` bool; for short inputs."""
        rows, place = (torch.arange(n, device=self.keys.device) for n in (T, S))
        pairs = self.listed_or_near(S)[:, :, rows // self.block]  # (B, H, T, S)
        if self.causal:
            start = rows[:, None] // self.block * self.block
            pairs = pairs | (place >= start) & (place <= rows[:, None])
        every = self.exact_queries(T)[:, None, :, None]
        return pairs | (every & (place <= rows[:, None]) if self.causal else every)


def _taken(x: Tensor, order: Tensor) -> Tensor:
    """Rows `(B, H, T, E)` in an order, in memory as `(B, T, H, E)`.

    So models have them: what all heads have of a token is copied in one piece.
    """
    rows = x.transpose(1, 2)
    return rows.flatten(2).index_select(1, order).view(rows.shape).transpose(1, 2)


@dataclass(frozen=True)
class KeyChoice:
    """How some heads choose their keys, from a few rows each.

    `places (4, n)` int32 are the places of the n heads among those of the queries, the keys, the
    values and the units; `rows (N, samples)` int32 the places of the queries that choose for each
    block; `thresholds (n,)` the least mean probability of a key that is kept. The `first` keys that
    are no padding are always kept.
    """

    places: Tensor
    rows: Tensor
    thresholds: Tensor
    first: int
