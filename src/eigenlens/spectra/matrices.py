"""Eigen-analysis of whole score matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..captures import Site
from ..stats import MatrixGram, MatrixSketch, MatrixSums, Pairs, ProjectionSums
from ..threads import map_in_threads
from .bases import Energies, Key, Scope, spectra_of
from .centring import CENTRINGS, Centring, normaliser
from .factor import Factor, exact_factor, kept_columns, nystrom_factor, pool_factors
from .spectrum import Spectrum


class MatrixBasis:
    """The eigenvectors of one factor in all three centrings, as coefficients in one basis.

    Held-out samples are projected on the basis once.

    The basis is `[Z, μ/‖μ‖ | U, Pμ/‖Pμ‖]`, (2r+2, N), a vector a row: Z and U the centred and
    row-centred eigenvectors. The raw ones lie in the span of Z and μ, as eigenvectors of `Z Λ Zᵀ +
    n μμᵀ = W D Wᵀ` with W = [Z, μ/‖μ‖] and D = diag(Λ, n‖μ‖²): they are `W D^½ y` for eigenvectors
    y of `D^½ (WᵀW) D^½`.
    """

    def __init__(self, factor: Factor, pairs: Pairs, basis: Tensor) -> None:
        # basis (2r+2, N) is filled here
        self.number, self.exact, self.basis = factor.number, factor.exact, basis
        less = pairs.less_row_means(factor.mean)
        self.lengths = {"centred": factor.mean.norm(), "row-centred": less.norm()}  # ‖μ‖, ‖Pμ‖
        halves = {
            "centred": (factor.centred, factor.mean),
            "row-centred": (factor.row_centred, less),
        }
        row = 0
        self.means: dict[str, Tensor] = {}  # Wᵀμ and [U, …]ᵀPμ
        for name, (half, mean) in halves.items():
            unit = mean / self.lengths[name].clamp_min(1e-300)
            size = len(half.vectors)
            basis[row : row + size] = half.vectors
            basis[row + size] = unit
            row += size + 1
            self.means[name] = torch.cat(
                [(half.vectors @ mean.float()).double(), self.lengths[name][None]]
            )
        n, values = factor.number, factor.centred.values
        gram = torch.eye(len(values) + 1, dtype=torch.float64)
        gram[:-1, -1] = gram[-1, :-1] = self.means["centred"][:-1] / self.lengths[
            "centred"
        ].clamp_min(1e-300)
        # D^½
        root = torch.cat([values, (n * self.lengths["centred"] ** 2)[None]]).clamp_min(0).sqrt()
        raw, y = torch.linalg.eigh(root[:, None] * gram * root)
        raw, y = raw.flip(0)[: len(values)].clamp_min(0), y.flip(1)[:, : len(values)]
        self.raw_coefficients = root[:, None] * y / raw.clamp_min(1e-300).sqrt()  # (r+1, r)
        self.values: dict[Centring, Tensor] = {
            "raw": raw,
            "centred": values,
            "row-centred": factor.row_centred.values,
        }
        less_energy = factor.energy - factor.row_energy
        self.totals: dict[Centring, float] = {
            "raw": factor.energy,
            "centred": max(factor.energy - n * float(self.lengths["centred"]) ** 2, 0.0),
            "row-centred": max(less_energy - n * float(self.lengths["row-centred"]) ** 2, 0.0),
        }

    @property
    def rank(self) -> int:
        return len(self.values["centred"])

    def vectors(self, centring: Centring, number: int) -> Tensor:
        """Return the leading eigenvectors, (k, N)."""
        r = self.rank
        if centring == "raw":
            return self.raw_coefficients[:, :number].T.float() @ self.basis[: r + 1]
        start = 0 if centring == "centred" else r + 1
        return self.basis[start : start + min(number, r)]

    def energies(
        self, sums: ProjectionSums, entry: int, centring: Centring
    ) -> tuple[Tensor, float]:
        """Return held-out variance per eigenvector and in all, from moments of `a = basis x`."""
        r = self.rank
        block = slice(r + 1, 2 * r + 2) if centring == "row-centred" else slice(0, r + 1)
        second, first = sums.second[entry, block, block], sums.first[entry, block]
        number, total = float(sums.number), float(sums.energy[entry])
        if centring == "row-centred":
            total -= float(sums.row_energy[entry])
        if centring == "raw":
            t = self.raw_coefficients
            return ((second @ t) * t).sum(0).clamp_min(0), max(total, 0.0)
        mean, length = self.means[centring], self.lengths[centring]
        # Σ‖x−μ‖² = Σ‖x‖² − 2 μᵀΣx + n‖μ‖²
        total += float(number * length**2 - 2 * length * first[-1])
        along = second.diagonal() - 2 * first * mean + number * mean.square()
        return along[:-1].clamp_min(0), max(total, 0.0)


class MatrixAnalysis:
    """Bases of every head, layer and stack from fit inputs; held-out inputs are projected on them.

    With `release`, the sketch or samples in `fit` are freed site by site as the bases take their
    place in memory.
    """

    def __init__(
        self, fit: MatrixSketch | MatrixGram, rank: int = 64, release: bool = False
    ) -> None:
        self.pairs: dict[Site, Pairs] = {}
        self.bases: dict[Scope, list[MatrixBasis]] = {}
        # as `MatrixProjection` wants them: (H, m, N), (m, N) of a layer or stack
        self.projection_bases: dict[str, Tensor] = {}
        self.rank = rank
        layers: dict[str, list[tuple[Site, Factor]]] = {}
        # else all others were padded
        found = {site: sums for site, sums in fit.result().items() if float(sums.number) >= 2}
        in_stack = Counter(site.stack for site in found)
        for site, sums in found.items():
            pairs = self.pairs[site] = Pairs(sums.valid)
            heads = range(len(sums.first))
            samples = int(sums.number)
            of_head = kept_columns(pairs.number, rank, samples, len(heads))
            of_layer = kept_columns(pairs.number, rank, samples * len(heads), in_stack[site.stack])
            if isinstance(fit, MatrixSketch):
                make = partial(_of_sketch, fit.tests[site], sums, pairs, of_head)
            else:
                make = partial(exact_factor, sums, pairs, of_head)
            factors = map_in_threads(make, heads)
            if release:
                fit.forget(site)
            layer = pool_factors(factors, pairs, rank, of_layer)
            self._add(Scope.of(site, "head"), factors, pairs)
            self._add(Scope.of(site, "layer"), [layer], pairs)
            layers.setdefault(site.stack, []).append((site, layer))
        for stack, parts in layers.items():
            first = self.pairs[parts[0][0]]
            if all(torch.equal(self.pairs[site].valid, first.valid) for site, _ in parts):
                self._add(
                    Scope("stack", stack),
                    [pool_factors([factor for _, factor in parts], first, rank, rank)],
                    first,
                )

    def _add(self, scope: Scope, factors: list[Factor], pairs: Pairs) -> None:
        factors = [factor.leading(self.rank) for factor in factors]
        vectors = factors[0].centred.vectors
        rank, N = vectors.shape
        together = vectors.new_empty(len(factors), 2 * rank + 2, N)
        self.bases[scope] = map_in_threads(
            lambda pair: MatrixBasis(pair[0], pairs, pair[1]), list(zip(factors, together))
        )
        self.projection_bases[_name(scope)] = together if scope.level == "head" else together[0]

    def energies(self, group: dict[str, ProjectionSums]) -> dict[Key, Energies]:
        """Return the variance of one group's held-out inputs along every eigenvector."""
        found: dict[Key, Energies] = {}
        for scope, bases in self.bases.items():
            sums = group.get(_name(scope))
            if sums is None:
                continue
            for centring in CENTRINGS:
                measured = [
                    basis.energies(sums, entry, centring) for entry, basis in enumerate(bases)
                ]
                total = torch.tensor([total for _, total in measured], dtype=torch.float64)
                found[scope, centring] = Energies(
                    torch.stack([energy for energy, _ in measured]), total
                )
        return found

    def spectra(self, groups: Sequence[dict[Key, Energies]]) -> list[Spectrum]:
        made = []
        for scope, bases in self.bases.items():
            number, dimensions = bases[0].number, bases[0].basis.shape[1]
            for centring in CENTRINGS:
                scale = normaliser(number, centring)
                values = torch.stack([basis.values[centring] for basis in bases]) / scale
                total = (
                    torch.tensor([basis.totals[centring] for basis in bases], dtype=torch.float64)
                    / scale
                )
                key, bound = (scope, centring), not bases[0].exact
                made += spectra_of(
                    "matrices", key, values, total, int(number), dimensions, groups, bound
                )
        return made


def _of_sketch(tests: Tensor, sums: MatrixSums, pairs: Pairs, most: int, head: int) -> Factor:
    return nystrom_factor(sums, pairs, most, head, tests[head])


def _name(scope: Scope) -> str:
    """Name a basis: `encoder/3` for heads, else `encoder/3/layer` or `encoder/stack`."""
    return f"{scope.at}" if scope.level == "head" else f"{scope.at}/{scope.level}"
