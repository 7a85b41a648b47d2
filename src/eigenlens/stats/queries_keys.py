"""Moments of queries and keys themselves, per head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ..captures import AttentionCall, Site
from .statistic import State, add_sites, by_site, same_shape

VECTOR_SHAPES = {
    "query_number": "",
    "query_first": "H D",
    "query_second": "H D D",
    "query_positions": "H T D",
    "query_counts": "T",
    "key_number": "",
    "key_first": "G D",
    "key_second": "G D D",
    "key_positions": "G S D",
    "key_counts": "S",
}
"""What a file must hold for a site."""


@dataclass
class VectorSums:
    """Sums over valid tokens: `number` (), `first` (H, D), `second` (H, D, D).

    Keys are counted per key-value head, queries are scaled.

    `positions` (H, n, D) are the sums of each position over the inputs, `counts` (n,) how many
    inputs reach it.
    """

    query_number: Tensor
    query_first: Tensor
    query_second: Tensor
    query_positions: Tensor
    query_counts: Tensor
    key_number: Tensor
    key_first: Tensor
    key_second: Tensor
    key_positions: Tensor
    key_counts: Tensor

    def plus(self, other: VectorSums) -> VectorSums:
        return VectorSums(**{name: x + getattr(other, name) for name, x in vars(self).items()})


class QueryKeyMoments:
    """`Σ q`, `Σ qqᵀ`, `Σ k`, `Σ kkᵀ` of every head, and `Σ q`, `Σ k` of every position.

    From these come projections of queries and keys that keep `QKᵀ` best if queries and keys do not
    depend on each other and no pair is masked, and the mean of what these leave out. Queries
    include the scale of the scores, so that `E[qqᵀ]` and `E[kkᵀ]` together give the second moment
    of the scores. Cost: `T·D² + S·D²` per head and input. Memory: `8·D·(D + n)` bytes per query
    head and key-value head.
    """

    def __init__(self) -> None:
        self.sites: dict[Site, VectorSums] = {}

    @torch.no_grad()
    def update(self, call: AttentionCall) -> None:
        B, _, T, _ = call.q.shape
        G, S, D = call.k.shape[1:]
        shape = call.mask_shape
        queries = shape.queries if shape.form == "rectangle" else call.query_valid  # (B, T) or None
        # those that some query sees
        keys = None if shape.valid is None else shape.valid.any(1).any(1).expand(B, S)
        k = call.head_keys if keys is None else call.head_keys * keys[None, :, :, None]
        flat = k.view(G, B * S, D)
        sums = VectorSums(
            query_number=torch.tensor(float(B * T)) if queries is None else queries.sum().float(),
            query_first=call.query_sum.sum(1),
            query_second=call.query_gram.sum(1),
            query_positions=call.head_queries.sum(1),
            query_counts=torch.full((T,), float(B)) if queries is None else queries.sum(0).float(),
            key_number=torch.tensor(float(B * S)) if keys is None else keys.sum().float(),
            key_first=flat.sum(1),
            key_second=flat.transpose(1, 2) @ flat,
            key_positions=k.sum(1),
            key_counts=torch.full((S,), float(B)) if keys is None else keys.sum(0).float(),
        )
        sums = VectorSums(**{name: x.to(torch.float64) for name, x in vars(sums).items()})
        site = call.site
        if site in self.sites:
            same_shape(
                site.full_label,
                tuple(self.sites[site].query_positions.shape),
                tuple(sums.query_positions.shape),
            )
            sums = self.sites[site].plus(sums)
        self.sites[site] = sums

    def merge(self, other: Self) -> None:
        add_sites(self.sites, other.sites, VectorSums.plus)

    def state(self) -> State:
        return {
            f"{site}/{name}": x.contiguous()
            for site, sums in self.sites.items()
            for name, x in vars(sums).items()
        }

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        moments = cls(**settings)
        moments.sites = {site: VectorSums(**parts) for site, parts in by_site(state).items()}
        return moments

    def result(self) -> dict[Site, VectorSums]:
        return self.sites
