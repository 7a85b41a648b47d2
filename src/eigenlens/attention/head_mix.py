"""One mechanism per group of heads in a layer (Multiformer, arXiv 2205.07100)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EigenlensError
from .call_terms import CallTerms
from .contract import Mechanism, Shape


class HeadMix(Mechanism):
    """`A^h = A_g(Q^h, K^h)` for the heads h of group g.

    Groups are consecutive heads, each group with its own mechanism.

    A member with weights of its own is made for the heads of its group, `Shape(heads=2, …)` for
    two. The mix supports what all members support: it can be causal if all can be, is linear if all
    are, and reads the stream if one does.

    >>> HeadMix([(Softmax(), 2), (make("local", window=16), 2)])(q, k, v).shape  # (B, 4, T, E)
    """

    name = "head-mix"
    # of the class, which says it for members that have; an instance knows its own
    own_weights = True

    def __init__(self, groups: Sequence[tuple[Mechanism, int]]) -> None:
        if not groups or any(count < 1 for _, count in groups):
            raise EigenlensError(
                f"each group of a mix needs at least one head, not {[count for _, count in groups]}"
            )
        super().__init__(shape=Shape(heads=sum(count for _, count in groups)))
        self.members = nn.ModuleList(member for member, _ in groups)
        self.counts = tuple(count for _, count in groups)
        members = [member for member, _ in groups]
        directions = tuple(
            way
            for way in Mechanism.directions
            if all(way in member.directions for member in members)
        )
        if not directions:
            message = ", ".join(
                f"{member.name} ({' or '.join(member.directions)})" for member in members
            )
            raise EigenlensError(
                "these mechanisms cannot be heads of one layer, because some must be causal and"
                f" others cannot be: {message}"
            )
        self.__dict__.update(
            directions=directions,
            takes_pairs=all(member.takes_pairs for member in members),
            own_weights=any(member.own_weights for member in members),
            reads_stream=any(member.reads_stream for member in members),
            linear=all(member.linear for member in members),
        )

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        return torch.cat(
            [
                member.pattern(q[:, at], k[:, at], terms)
                for member, at, terms in self._parts(q, given)
            ],
            1,
        )

    def dense(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        return torch.cat(
            [
                m.dense(q[:, at], k[:, at], v[:, at], terms)
                for m, at, terms in self._parts(q, given)
            ],
            1,
        )

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        return torch.cat(
            [m.fast(q[:, at], k[:, at], v[:, at], terms) for m, at, terms in self._parts(q, given)],
            1,
        )

    def cost(self, n: int, d: int) -> int:
        """The mean over the heads, rounded, so that all heads together cost the sum."""
        return round(self.total_cost(n, d) / self.shape.heads)

    def total_cost(self, n: int, d: int) -> int:
        """Multiply-adds of all heads together."""
        return sum(count * member.cost(n, d) for member, count in zip(self._members(), self.counts))

    def _members(self) -> list[Any]:
        return list(self.members)

    def _parts(self, q: Tensor, given: CallTerms) -> Iterator[tuple[Any, slice, CallTerms]]:
        """Yield each member, its heads, and the terms of the call for them."""
        if q.shape[1] != self.shape.heads:
            raise EigenlensError(
                f"this mix has {self.shape.heads} heads, but the queries have {q.shape[1]}"
            )
        start = 0
        for member, count in zip(self._members(), self.counts):
            at, pairs = slice(start, start + count), given.pairs
            own = pairs if pairs is None or pairs.shape[1] == 1 else pairs[:, at]
            yield member, at, given if own is pairs else replace(given, pairs=own)
            start += count
