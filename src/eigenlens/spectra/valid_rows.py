"""Row spectra over the rows that see a key, in addition to those over all rows.

Under a mask only some of the n rows see a key. With `v_ij ∈ {0, 1}` marking valid pairs and `n_jk =
Σ_i v_ij v_ik`,

    all rows      C_jk = Σ_i (s_ij − μ_j)(s_ik − μ_k) v_ij v_ik / (n − 1)
    valid rows    C_jk = Σ_i (s_ij − μ_j)(s_ik − μ_k) v_ij v_ik / (n_jk − 1)

(without the −1 where nothing is centred). The first is the covariance of rows in which every
missing score is set to the mean of its key. It is never indefinite, but the variance of key j
shrinks by the factor `n_jj / n`, so that late keys of a causal model count too little and
dimensions look lower than they are. The second estimates every entry from the rows that see both
keys. Its entries come from different rows, so it may have negative eigenvalues: they are set to
zero, and `clipped = Σ|λ₋| / Σλ₊` says how large they were. Without a mask the two are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..captures import Head, Site
from ..stats import RowMoments, RowSums
from ..stats.within import SHARES
from ..threads import eigh
from .centring import CENTRINGS, Centring, row_mean, row_scatter
from .dimension import dimension_at, effective_rank, participation_ratio

if TYPE_CHECKING:
    from .spectrum import Spectrum


@dataclass(frozen=True, eq=False)
class ValidRows:
    """The spectrum of one head over valid rows.

    `eigenvalues (S,)` are descending, `held_out (S,)` is a share without an interval.
    """

    total: float
    clipped: float
    eigenvalues: np.ndarray
    held_out: np.ndarray

    @property
    def explained(self) -> np.ndarray:
        """The share of the variance of the fit inputs in the first k components, (S,)."""
        return (
            np.clip(self.eigenvalues.cumsum() / self.total, 0, 1)
            if self.total > 0
            else np.zeros(len(self.eigenvalues))
        )

    def dimension(self, share: float, held_out: bool = True) -> int | None:
        """Return how many components `share` of the variance needs, held out or in the sample."""
        return dimension_at(self.held_out if held_out else self.explained, share)

    def row(self) -> dict[str, Any]:
        """The numbers of the spectrum, named `valid_rows_…`."""
        record: dict[str, Any] = {
            "total_variance": self.total,
            "clipped": self.clipped,
            "effective_rank": effective_rank(self.eigenvalues, self.total),
            "participation_ratio": participation_ratio(self.eigenvalues, self.total),
        }
        for share in SHARES:
            record[f"dimension_{round(share * 100)}"] = self.dimension(share, held_out=False)
            record[f"held_out_dimension_{round(share * 100)}"] = self.dimension(share)
        return {f"valid_rows_{name}": value for name, value in record.items()}


def valid_rows(fit: RowSums, held: RowSums | None, centring: Centring) -> list[ValidRows]:
    """Return for every head: eigenvalues over valid rows, and held-out variance along the vectors.

    Cost: S³ per head.
    """
    mean = row_mean(fit, centring)
    values, vectors = eigh(_pairwise(fit, centring, mean, centring != "raw"))  # rising
    values, vectors = values.flip(1), vectors.flip(2)
    kept = values.clamp_min(0)
    total = kept.sum(1)
    clipped = (kept - values).sum(1) / total.clamp_min(torch.finfo(total.dtype).tiny)
    share = torch.full_like(values, torch.nan)
    if held is not None:
        # (H, S)
        energy = ((_pairwise(held, centring, mean, False) @ vectors) * vectors).sum(1).clamp_min(0)
        share = (
            energy.cumsum(1) / energy.sum(1, keepdim=True).clamp_min(torch.finfo(energy.dtype).tiny)
        ).clamp_max(1)
    return [
        ValidRows(float(total[h]), float(clipped[h]), kept[h].numpy(), share[h].numpy())
        for h in range(len(values))
    ]


def _pairwise(sums: RowSums, centring: Centring, mean: Tensor, less_one: bool) -> Tensor:
    """Return the scatter (H, S, S), each entry over the rows that see both of its keys.

    Zero if no row does.
    """
    return row_scatter(sums, centring, mean) / (sums.count - int(less_one)).clamp_min(1)


def uneven(sums: RowSums) -> bool:
    """Whether a mask hides some key from some row."""
    return sums.masked and bool((sums.count < sums.rows).any())


def with_valid_rows(
    spectra: Sequence[Spectrum], fit: RowMoments, held: RowMoments
) -> list[Spectrum]:
    """Add to spectra of heads' rows under a mask the spectrum over valid rows.

    Memory: a few matrices (S, S) for each head of one site.
    """
    found: dict[tuple[Site, Centring], list[ValidRows]] = {}
    for site in fit.sites:
        sums = fit.of_site(site)
        if uneven(sums):
            beyond = held.of_site(site) if site in held.sites else None
            found |= {
                (site, centring): valid_rows(sums, beyond, centring) for centring in CENTRINGS
            }

    def beside(s: Spectrum) -> Spectrum:
        if s.analysis != "rows" or not isinstance(s.at, Head):
            return s
        mine = found.get((s.at.site, s.centring))
        return s if mine is None else replace(s, valid_rows=mine[s.at.head])

    return [beside(spectrum) for spectrum in spectra]
