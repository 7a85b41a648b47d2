"""First and second moments of score rows, per head."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch

from ..captures import AttentionCall, Site
from .row_products import MAP_SHAPES, MASKED_SHAPES, ROW_SHAPES, MapSums, RowSums, row_sums
from .statistic import State, add_sites, by_site, same_shape
from .workspace import Workspace


class RowMoments:
    """Mean and covariance of the rows `s_i ∈ R^S` of every head, over valid pairs only.

    Cost per input and head: `S²·D` multiply-adds without a mask or with padding, about `3.5·S²·D`
    when causal, `S³` under any other mask. Memory: `8·S²` bytes per head, four times that under a
    mask. `of` is `scores` or `pattern`.
    """

    def __init__(self, of: Literal["scores", "pattern"] = "scores") -> None:
        self.of = of
        self.sites: dict[Site, RowSums | MapSums] = {}
        self._space = Workspace()

    @torch.no_grad()
    def update(self, call: AttentionCall) -> None:
        site, sums = call.site, row_sums(call, self.of, self._space)
        if site in self.sites:
            shapes = tuple(self.sites[site].second.shape), tuple(sums.second.shape)
            same_shape(site.full_label, *shapes)
            self.sites[site] = _added(self.sites[site], sums)
        else:
            self.sites[site] = sums.double()

    def merge(self, other: Self) -> None:
        add_sites(self.sites, other.sites, _added)

    def state(self) -> State:
        return {
            f"{site}/{name}": x.contiguous()
            for site, sums in self.sites.items()
            for name, x in sums.tensors().items()
        }

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        moments = cls(**settings)
        for site, parts in by_site(state).items():
            moments.sites[site] = MapSums(**parts) if "sum_map" in parts else RowSums(**parts)
        return moments

    def result(self) -> dict[Site, RowSums]:
        """The sums by site; `eigenlens.spectra` turns them into covariances."""
        return {site: self.of_site(site) for site in self.sites}

    def of_site(self, site: Site) -> RowSums:
        return _finished(self.sites[site])


def shapes_of(parts: State) -> dict[str, str]:
    """Return the shapes that the tensors of a site must have, for `check_tensors`."""
    return (
        MAP_SHAPES
        if "sum_map" in parts
        else MASKED_SHAPES
        if "second_less_mean" in parts
        else ROW_SHAPES
    )


def _finished(sums: RowSums | MapSums) -> RowSums:
    return sums.finished() if isinstance(sums, MapSums) else sums


def _added(mine: RowSums | MapSums, more: RowSums | MapSums) -> RowSums | MapSums:
    """Return `mine` with `more` added, in place if both are of one kind."""
    if isinstance(mine, MapSums) and isinstance(more, MapSums) and mine.same_mask(more):
        return mine.add_(more)
    return _finished(mine).add_(_finished(more.double()))
