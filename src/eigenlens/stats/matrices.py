"""Whole score matrices, one sample `vec(S) ∈ R^N` per input: a sketch, or exact for few inputs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..captures import AttentionCall, Site
from ..errors import EigenlensError
from .pairs import Pairs, complete_inputs
from .statistic import State, add_sites, by_site, same_shape
from .workspace import Workspace


@dataclass
class MatrixSums:
    """Sums over inputs, per head; `x = vec(S)` over the N valid pairs."""

    valid: Tensor  # (T, S) bool: the pairs
    number: Tensor  # () inputs; padded ones are left out
    first: Tensor  # (H, N) Σ x
    squares: Tensor  # (H, N) Σ x²
    row_energy: Tensor  # (H,) Σ_i n_i r_i², the energy of the row means
    sketch: Tensor  # (H, ℓ, N) Σ Ωᵀx xᵀ, or the samples themselves (H, inputs, N) in the exact form

    def add_(self, other: MatrixSums) -> MatrixSums:
        for part in fields(self)[1:]:
            getattr(self, part.name).add_(getattr(other, part.name))
        return self


@dataclass
class MatrixSketch:
    """The range of `C = Σ x xᵀ` in N = n² dimensions, without forming C.

    It sums `Yᵀ = Ωᵀ C`, with a fixed Ωᵀ (ℓ, N) per head; rows of pairs, as samples are, so that no
    matrix is ever turned.

    `Y` is linear in C, so shards that share Ω add. Ω holds the first ℓ inputs themselves
    (`from_pilot`): drawn from the distribution whose covariance is sought, they lie along its
    leading eigenvectors, where random directions would not. The Nyström form `Y (ΩᵀY)⁺ Yᵀ` never
    overstates an eigenvalue. How much of the trace it misses is known (the trace itself is exact),
    and with at most ℓ inputs it misses nothing. Cost: `2·N·ℓ` per head and input. Memory: `8·N·ℓ`
    bytes per head, float32, for Y and Ω.
    """

    tests: dict[Site, Tensor]  # site → Ωᵀ (H, ℓ, N)
    of: Literal["scores", "pattern"] = "scores"
    sites: dict[Site, MatrixSums] = field(default_factory=dict)
    # memory for the sketches of sites: fresh pages cost more than the product that fills them
    spare: dict[Site, Tensor] = field(default_factory=dict, repr=False)
    _space: Workspace = field(default_factory=Workspace, repr=False)

    @classmethod
    def from_pilot(cls, pilot: MatrixGram) -> Self:
        """Return a sketch that has seen the inputs of `pilot` and tests all others against them."""
        sketch = cls({}, of=pilot.of)
        for site, sums in pilot.result().items():
            samples = sums.sketch  # (H, ℓ, N)
            if not samples.numel():
                continue
            omega = samples - samples.mean(1, keepdim=True)
            omega /= omega.norm(dim=2, keepdim=True).clamp_min(1e-12)
            sketch.tests[site] = omega
            start = (omega @ samples.mT) @ samples
            sketch.sites[site] = MatrixSums(**{**vars(sums), "sketch": start})
        return sketch

    @torch.no_grad()
    def update(self, call: AttentionCall) -> None:
        site = call.site
        if site not in self.tests:
            return  # every pilot input was padded
        found = matrix_samples(call, self.of, self.sites.get(site), self._space)
        if found is None:
            return
        samples, sums = found
        weights = self.tests[site] @ samples.mT  # Ωᵀx of every input: (H, ℓ, B)
        if sums.sketch.numel():
            sums.sketch.baddbmm_(weights, samples)
        else:
            spare, tests = self.spare.pop(site, None), self.tests[site]
            fits = (
                spare is not None
                and spare.shape == tests.shape
                and (spare.dtype, spare.device) == (samples.dtype, samples.device)
            )
            sums.sketch = torch.bmm(weights, samples, out=spare if fits else None)
        self.sites[site] = sums

    def merge(self, other: Self) -> None:
        add_sites(self.sites, other.sites, _copy_add)

    def state(self) -> State:
        return _state(self.sites)

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        return cls(**settings, sites=_sites(state))

    def result(self) -> dict[Site, MatrixSums]:
        return self.sites

    def forget(self, site: Site) -> None:
        """Free Y and Ω of a site after their analysis; means and variances stay."""
        self.tests.pop(site, None)
        self.sites[site].sketch = self.sites[site].sketch.new_zeros(0)


@dataclass
class MatrixGram:
    """All samples, for the exact Gram form: at most `most` inputs.

    Memory: `4·N` bytes per head and input.
    """

    most: int = 1024
    of: Literal["scores", "pattern"] = "scores"
    sites: dict[Site, MatrixSums] = field(default_factory=dict)
    # (H, B, N) each, not yet joined
    _batches: dict[Site, list[Tensor]] = field(default_factory=dict, repr=False)
    _space: Workspace = field(default_factory=Workspace, repr=False)

    @torch.no_grad()
    def update(self, call: AttentionCall) -> None:
        site = call.site
        found = matrix_samples(call, self.of, self.sites.get(site), self._space)
        if found is None:
            return
        samples, self.sites[site] = found
        if float(self.sites[site].number) > self.most:
            raise EigenlensError(
                f"exact matrix spectra keep at most {self.most} inputs in memory; "
                "use the sketch, fewer inputs, or a larger limit"
            )
        self._batches.setdefault(site, []).append(samples.clone())

    def _join(self) -> None:
        for site in list(self._batches):  # one after the other: joined, they are held twice
            batches, held = self._batches.pop(site), self.sites[site].sketch
            # (H, n, N)
            self.sites[site].sketch = torch.cat([held, *batches] if held.numel() else batches, 1)

    def merge(self, other: Self) -> None:
        def join(mine: MatrixSums, theirs: MatrixSums) -> MatrixSums:
            _same_mask(mine, theirs)
            samples = [part.sketch for part in (mine, theirs) if part.sketch.numel()]
            empty = theirs.first.new_zeros(0)
            joined = MatrixSums(**{**vars(mine), "sketch": empty}).add_(
                MatrixSums(**{**vars(theirs), "sketch": empty})
            )
            joined.sketch = torch.cat(samples, 1) if samples else empty
            return joined

        self._join()
        other._join()
        add_sites(self.sites, other.sites, join)

    def state(self) -> State:
        self._join()
        return _state(self.sites)

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        return cls(**settings, sites=_sites(state))

    def result(self) -> dict[Site, MatrixSums]:
        self._join()
        return self.sites

    def forget(self, site: Site) -> None:
        """Free the samples of a site after their analysis; means and variances stay."""
        self.sites[site].sketch = self.sites[site].sketch.new_zeros(0)


def matrix_samples(
    call: AttentionCall, of: str, sums: MatrixSums | None, space: Workspace
) -> tuple[Tensor, MatrixSums] | None:
    """Return the complete inputs of a call as vectors (H, B, N), and the sums of its site.

    Everything but the sketch is added to the sums.

    None if every input is padded.
    """
    mask, complete = complete_inputs(call)
    if mask is None:
        return None
    if of == "scores" and call.linear:
        # (H, B, T, S)
        values = space.matmul("scores", call.head_queries, call.keys_by_head.transpose(2, 3))
    else:
        values = (
            (call.pattern() if of == "pattern" else call.raw_scores()).transpose(0, 1).contiguous()
        )
    if complete is not None:
        values = values[:, complete]
    if sums is None:
        H, N = call.heads, int(mask.sum())
        sizes: dict[str, tuple[int, ...]] = {
            "number": (),
            "first": (H, N),
            "squares": (H, N),
            "row_energy": (H,),
        }
        empty = {name: values.new_zeros(size, dtype=torch.float64) for name, size in sizes.items()}
        sums = MatrixSums(valid=mask, sketch=values.new_zeros(0), **empty)
    same_shape(call.site.full_label, tuple(sums.valid.shape), tuple(mask.shape))
    if not torch.equal(sums.valid, mask):
        raise EigenlensError(
            f"{call.site.full_label} was seen with two different masks, but matrix spectra need"
            " one mask"
        )
    pairs = Pairs(sums.valid)
    samples = pairs.vectors(values)
    sums.number += samples.shape[1]
    sums.first += samples.sum(1)
    squares = space.take("squares", (samples.shape[0], samples.shape[2]), samples).zero_()
    # one after the other is contiguous, and faster than a reduction over the batch
    for index in range(samples.shape[1]):
        squares.addcmul_(samples[:, index], samples[:, index])
    sums.squares += squares
    sums.row_energy += (pairs.row_means(samples).square() * pairs.row_counts).sum((1, 2))
    return samples, sums


def _copy_add(mine: MatrixSums, theirs: MatrixSums) -> MatrixSums:
    _same_mask(mine, theirs)
    return mine.add_(theirs)


def _same_mask(mine: MatrixSums, theirs: MatrixSums) -> None:
    same_shape("a site", tuple(mine.first.shape), tuple(theirs.first.shape))
    if not torch.equal(mine.valid, theirs.valid):
        raise EigenlensError(
            "a site was seen with two different masks, but matrix spectra need one mask"
        )


def _state(sites: dict[Site, MatrixSums]) -> State:
    return {
        f"{site}/{name}": x.contiguous()
        for site, sums in sites.items()
        for name, x in vars(sums).items()
    }


def _sites(state: State) -> dict[Site, MatrixSums]:
    return {site: MatrixSums(**parts) for site, parts in by_site(state).items()}
