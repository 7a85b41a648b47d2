"""Eigen-analysis of whole score matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..stats import MatrixGram, MatrixSketch, Pairs, ProjectionSums
from .bases import Energies, Key, Place, spectra_of
from .centring import CENTRINGS, Centring, normaliser
from .factor import Factor, exact, nystrom, pooled
from .spectrum import Spectrum


@dataclass
class Small:
    """One centring of a factor in the small space of its basis `W = [Z, μ/‖μ‖]` (N, m): eigenvectors are `W t`, or `P W t`."""

    eigenvalues: Tensor  # (r,) of the scatter
    coefficients: Tensor  # t (m, r)
    total: float  # of the scatter


class MatrixBasis:
    """The three centrings of one factor, all from inner products of its own basis vectors.

    raw          Z Λ Zᵀ + n μμᵀ = W D Wᵀ with D = diag(Λ, n‖μ‖²): eigenvectors W D^½ y of D^½ (WᵀW) D^½
    centred      Z Λ Zᵀ itself
    row-centred  P Z Λ Zᵀ P: eigenvectors P Z Λ^½ y of Λ^½ (Zᵀ P Z) Λ^½
    """

    def __init__(self, factor: Factor, pairs: Pairs, rank: int) -> None:
        values, vectors = factor.values[:rank], factor.vectors[:, :rank]
        self.number, self.rank = factor.number, len(values)
        self.length = factor.mean.norm().clamp_min(1e-300)  # ‖μ‖
        self.basis = torch.cat([vectors, (factor.mean / self.length).float()[:, None]], 1)  # W (N, m)
        w = self.basis.T  # (m, N)
        less = pairs.less_row_means(w)
        gram, gram_less = (w @ w.T).double(), (less @ less.T).double()
        n, mu2 = factor.number, float(self.length) ** 2
        mean_less = mu2 * float(gram_less[-1, -1])  # ‖Pμ‖²
        self.mean = gram[:, -1] * self.length  # Wᵀμ
        self.mean_less = gram_less[:, -1] * self.length  # WᵀPμ
        d = torch.cat([values, values.new_tensor([n * mu2])]).clamp_min(0).sqrt()
        inside = torch.cat([values, values.new_zeros(1)]).clamp_min(0).sqrt()
        identity = torch.eye(self.rank + 1, self.rank, dtype=torch.float64)
        self.small: dict[Centring, Small] = {
            "raw": Small(*_eigen(d, gram, self.rank), factor.energy),
            "centred": Small(values, identity, max(factor.energy - n * mu2, 0.0)),
            "row-centred": Small(
                *_eigen(inside, gram_less, self.rank), max(factor.energy - factor.row_energy - n * mean_less, 0.0)
            ),
        }

    def vectors(self, centring: Centring, pairs: Pairs, number: int) -> Tensor:
        """Leading eigenvectors, (k, N)."""
        found = (self.basis @ self.small[centring].coefficients[:, :number].float()).T
        return pairs.less_row_means(found) if centring == "row-centred" else found

    def energies(self, sums: ProjectionSums, entry: int, centring: Centring) -> tuple[Tensor, float]:
        """Held-out variance along each eigenvector and in all, from the moments of `a = Wᵀx` and `c = WᵀPx`."""
        less = centring == "row-centred"
        second = (sums.second_less if less else sums.second)[entry]
        first = (sums.first_less if less else sums.first)[entry]
        number, total = float(sums.number), float(sums.energy[entry])
        if less:
            total -= float(sums.row_energy[entry])
        if centring != "raw":
            mean = self.mean_less if less else self.mean
            cross = torch.outer(first, mean)
            second = second - cross - cross.T + number * torch.outer(mean, mean)
            total += float(number * self.length * mean[-1] - 2 * self.length * first[-1])
        t = self.small[centring].coefficients
        return ((second @ t) * t).sum(0).clamp_min(0), max(total, 0.0)


def _eigen(root: Tensor, gram: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues of `W D Wᵀ` and the t of its eigenvectors `W t`, from `D^½ (WᵀW) D^½` with `root = diag D^½`."""
    values, y = torch.linalg.eigh(root[:, None] * gram * root)
    values, y = values.flip(0)[:rank].clamp_min(0), y.flip(1)[:, :rank]
    return values, root[:, None] * y / values.clamp_min(1e-300).sqrt()


class MatrixAnalysis:
    """Bases of every head, layer and stack from the fit inputs; held-out inputs are then projected on them."""

    def __init__(self, fit: MatrixSketch | MatrixGram, rank: int = 64) -> None:
        self.pairs: dict[str, Pairs] = {}
        self.bases: dict[Place, list[MatrixBasis]] = {}
        layers: dict[str, list[tuple[str, Factor]]] = {}
        for site, sums in fit.result().items():
            if float(sums.number) < 2:
                continue  # every input was padded
            pairs = self.pairs[site] = Pairs(sums.valid)
            heads = range(len(sums.first))
            if isinstance(fit, MatrixSketch):
                factors = [nystrom(sums, h, fit.tests[site][h], rank) for h in heads]
            else:
                factors = [exact(sums, h, rank) for h in heads]
            self.bases[Place.of(site, "head")] = [MatrixBasis(factor, pairs, rank) for factor in factors]
            layer = pooled(factors, rank)
            self.bases[Place.of(site, "layer")] = [MatrixBasis(layer, pairs, rank)]
            layers.setdefault(Place.of(site, "stack").stack, []).append((site, layer))
        for stack, parts in layers.items():
            first = self.pairs[parts[0][0]]
            if all(torch.equal(self.pairs[site].valid, first.valid) for site, _ in parts):
                self.bases[Place("stack", stack)] = [MatrixBasis(pooled([f for _, f in parts], rank), first, rank)]

    def projection_bases(self) -> dict[str, Tensor]:
        """The bases under the names that `MatrixProjection` looks for."""
        named: dict[str, Tensor] = {}
        for place, bases in self.bases.items():
            if place.level == "head":
                widest = max(b.basis.shape[1] for b in bases)
                padded = [torch.nn.functional.pad(b.basis, (widest - b.basis.shape[1], 0)) for b in bases]
                named[f"{place.stack}/{place.layer}"] = torch.stack(padded)
            elif place.level == "layer":
                named[f"{place.stack}/{place.layer}/layer"] = bases[0].basis
            else:
                named[f"{place.stack}/stack"] = bases[0].basis
        return named

    def energies(self, group: dict[str, ProjectionSums]) -> dict[Key, Energies]:
        found: dict[Key, Energies] = {}
        for place, bases in self.bases.items():
            name = f"{place.stack}/stack" if place.layer is None else f"{place.stack}/{place.layer}"
            sums = group.get(f"{name}/layer" if place.level == "layer" else name)
            if sums is None:
                continue
            widest = sums.first.shape[1]
            for centring in CENTRINGS:
                rank = max(b.rank for b in bases)
                energy, total = torch.zeros(len(bases), rank, dtype=torch.float64), torch.zeros(len(bases), dtype=torch.float64)
                for entry, basis in enumerate(bases):
                    own = _without_padding(sums, widest - basis.basis.shape[1])
                    along, total[entry] = basis.energies(own, entry, centring)
                    energy[entry, : len(along)] = along
                found[place, centring] = Energies(energy, total)
        return found

    def spectra(self, groups: Sequence[dict[Key, Energies]]) -> list[Spectrum]:
        made = []
        for place, bases in self.bases.items():
            rank, dimensions = max(b.rank for b in bases), bases[0].basis.shape[0]
            for centring in CENTRINGS:
                values, total = torch.zeros(len(bases), rank, dtype=torch.float64), torch.zeros(len(bases), dtype=torch.float64)
                for entry, basis in enumerate(bases):
                    small, scale = basis.small[centring], normaliser(basis.number, centring)
                    values[entry, : basis.rank], total[entry] = small.eigenvalues / scale, small.total / scale
                made += spectra_of(
                    "matrices", (place, centring), values, total, int(bases[0].number), dimensions, groups
                )
        return made


def _without_padding(sums: ProjectionSums, columns: int) -> ProjectionSums:
    """Drop the leading zero columns that made the bases of a layer's heads equally wide."""
    if columns == 0:
        return sums
    cut = {"first": sums.first[:, columns:], "first_less": sums.first_less[:, columns:]}
    cut |= {"second": sums.second[:, columns:, columns:], "second_less": sums.second_less[:, columns:, columns:]}
    return ProjectionSums(**{**vars(sums), **cut})
