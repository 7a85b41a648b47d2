"""Eigen-analysis of score rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..captures import Site
from ..stats import RowSums
from ..threads import eigh
from .bases import Energies, Key, Scope, spectra_of
from .centring import CENTRINGS, Centring, normaliser, pool_heads, row_mean, row_scatter
from .spectrum import Spectrum


@dataclass
class RowBasis:
    """Mean, eigenvalues and eigenvectors of the rows of h heads (or of one pooled sample)."""

    mean: Tensor  # (h, S)
    eigenvalues: Tensor  # (h, S), falling
    vectors: Tensor  # (h, S, S), one eigenvector a column
    total: Tensor  # (h,)
    samples: int


def row_basis(sums: RowSums, centring: Centring) -> RowBasis:
    """Return the eigenvectors of the covariance of rows, float64. Cost: S³ per head."""
    mean = row_mean(sums, centring)
    covariance = row_scatter(sums, centring, mean) / normaliser(sums.rows, centring)
    values, vectors = eigh(covariance)  # rising
    total = covariance.diagonal(dim1=1, dim2=2).sum(1)
    return RowBasis(
        mean, values.flip(1).clamp_min(0), vectors.flip(2), total.clamp_min(0), int(sums.rows)
    )


def sums_by_scope(fit: dict[Site, RowSums]) -> dict[Scope, RowSums]:
    """Return the sums of every head, layer and stack.

    A stack is left out if its layers see different numbers of keys.
    """
    found: dict[Scope, RowSums] = {}
    stacks: dict[str, list[RowSums]] = {}
    for site, sums in fit.items():
        found[Scope.of(site, "head")] = sums
        found[Scope.of(site, "layer")] = pooled = pool_heads(sums)
        stacks.setdefault(site.stack, []).append(pooled)
    for stack, parts in stacks.items():
        if len({part.second.shape for part in parts}) == 1:
            total = parts[0]
            for part in parts[1:]:
                total = total.plus(part)
            found[Scope("stack", stack)] = total
    return found


class RowAnalysis:
    """Bases from the fit inputs; held-out inputs are measured in them group by group."""

    def __init__(self, fit: dict[Site, RowSums]) -> None:
        self.bases: dict[Key, RowBasis] = {
            (scope, centring): row_basis(sums, centring)
            for scope, sums in sums_by_scope(fit).items()
            for centring in CENTRINGS
        }

    def energies(self, group: dict[Site, RowSums]) -> dict[Key, Energies]:
        """Return the variance of held-out rows along every eigenvector.

        `diag(Uᵀ Σ (s−μ)(s−μ)ᵀ U)`, with means from the fit.
        """
        found: dict[Key, Energies] = {}
        for scope, sums in sums_by_scope(group).items():
            for centring in CENTRINGS:
                basis = self.bases.get((scope, centring))
                if basis is None:
                    continue
                scatter = row_scatter(sums, centring, basis.mean)
                # float32 is enough for a share, and n³ per head is much in float64
                vectors = basis.vectors.float()
                # (h, S)
                energy = ((scatter.float() @ vectors) * vectors).sum(1, dtype=torch.float64)
                total = scatter.diagonal(dim1=1, dim2=2).sum(1)
                found[scope, centring] = Energies(energy.clamp_min(0), total.clamp_min(0))
        return found

    def spectra(self, groups: Sequence[dict[Key, Energies]]) -> list[Spectrum]:
        return [
            spectrum
            for key, basis in self.bases.items()
            for spectrum in spectra_of(
                "rows",
                key,
                basis.eigenvalues,
                basis.total,
                basis.samples,
                basis.eigenvalues.shape[1],
                groups,
            )
        ]
