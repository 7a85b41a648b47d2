"""Whole score matrices, `vec(S) ∈ R^N` with one sample an input: a mergeable sketch, and the exact form for few inputs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..capture import AttentionCall
from ..errors import EigenlensError
from .pairs import Pairs, complete_inputs
from .statistic import State, add_sites, by_site, same_shape


@dataclass
class MatrixSums:
    """Sums over inputs, per head; `x = vec(S)` over the N valid pairs."""

    valid: Tensor  # (T, S) bool: the pairs
    number: Tensor  # () inputs
    skipped: Tensor  # () inputs left out because they are padded
    first: Tensor  # (H, N) Σ x
    squares: Tensor  # (H, N) Σ x²
    row_energy: Tensor  # (H,) Σ_i n_i r_i², the energy of the row means
    sketch: Tensor  # (H, N, ℓ) Σ x xᵀ Ω, or the samples themselves (H, inputs, N) in the exact form

    def add_(self, other: MatrixSums) -> MatrixSums:
        for part in fields(self)[1:]:
            getattr(self, part.name).add_(getattr(other, part.name))
        return self


@dataclass
class MatrixSketch:
    """The range of `C = Σ x xᵀ` in N = n² dimensions without ever forming it: `Y = C Ω` with a fixed random Ω (N, ℓ).

    `Y` is linear in C, so shards add. With `ℓ = rank + oversample`, the Nyström form `Y (ΩᵀY)⁺ Yᵀ` has an expected error
    of at most `(1 + rank/(oversample − 1)) · Σ_{i > rank} λ_i` in the nuclear norm, and never overstates an eigenvalue.
    It is exact when there are at most ℓ inputs. Cost: `2·N·ℓ` a head and input. Memory: `4·N·ℓ` bytes a head (float32,
    added batch by batch).
    """

    rank: int = 64
    oversample: int = 16
    seed: int = 0
    of: Literal["scores", "pattern"] = "scores"
    sites: dict[str, MatrixSums] = field(default_factory=dict)
    _omega: dict[int, Tensor] = field(default_factory=dict, repr=False)

    @property
    def columns(self) -> int:
        return self.rank + self.oversample

    def omega(self, pairs: int, device: torch.device | str = "cpu") -> Tensor:
        """The random test matrix (N, ℓ) for N pairs: the same in every process."""
        if pairs not in self._omega:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + pairs)
            self._omega[pairs] = torch.randn(pairs, self.columns, generator=generator).to(device)
        return self._omega[pairs]

    @torch.no_grad()
    def update(self, call: AttentionCall) -> None:
        samples, sums = matrix_samples(call, self.of, self.sites.get(str(call.site)))
        if samples is None:
            return
        B, H, N = samples.shape
        omega = self.omega(N, samples.device)
        if not sums.sketch.numel():
            sums.sketch = samples.new_zeros(H, N, self.columns)
        weights = (samples.reshape(B * H, N) @ omega).view(B, H, -1).transpose(0, 1)  # (H, B, ℓ): xᵀΩ
        sums.sketch.baddbmm_(samples.permute(1, 2, 0), weights)
        self.sites[str(call.site)] = sums

    def merge(self, other: Self) -> None:
        add_sites(self.sites, other.sites, _copy_add)

    def state(self) -> State:
        return _state(self.sites)

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        return cls(**settings, sites=_sites(state))

    def result(self) -> dict[str, MatrixSums]:
        return self.sites


@dataclass
class MatrixGram:
    """All samples, for the exact Gram form: at most `most` inputs. Memory: `4·N` bytes a head and input."""

    most: int = 512
    of: Literal["scores", "pattern"] = "scores"
    sites: dict[str, MatrixSums] = field(default_factory=dict)

    @torch.no_grad()
    def update(self, call: AttentionCall) -> None:
        samples, sums = matrix_samples(call, self.of, self.sites.get(str(call.site)))
        if samples is None:
            return
        rows = samples.transpose(0, 1)  # (H, B, N)
        sums.sketch = torch.cat([sums.sketch, rows], 1) if sums.sketch.numel() else rows.contiguous()
        if sums.sketch.shape[1] > self.most:
            raise EigenlensError(
                f"the exact matrix spectra hold at most {self.most} inputs in memory; "
                "use the sketch, fewer inputs, or a larger limit"
            )
        self.sites[str(call.site)] = sums

    def merge(self, other: Self) -> None:
        def join(mine: MatrixSums, theirs: MatrixSums) -> MatrixSums:
            samples = torch.cat([mine.sketch, theirs.sketch], 1)
            empty = samples.new_zeros(0)
            mine.sketch = empty
            added = mine.add_(MatrixSums(**{**vars(theirs), "sketch": empty}))
            added.sketch = samples
            return added

        add_sites(self.sites, other.sites, join)

    def state(self) -> State:
        return _state(self.sites)

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        return cls(**settings, sites=_sites(state))

    def result(self) -> dict[str, MatrixSums]:
        return self.sites


def matrix_samples(call: AttentionCall, of: str, sums: MatrixSums | None) -> tuple[Tensor | None, MatrixSums]:
    """The complete inputs of a call as vectors (B, H, N), and the sums of its site with all but the sketch added."""
    mask, whole = complete_inputs(call)
    H = call.heads
    skipped = 0 if whole is None else int((~whole).sum())
    values = call.pattern() if of == "pattern" else call.raw_scores()  # (B, H, T, S)
    if whole is not None:
        values = values[whole]
    if sums is None:
        N = int(mask.sum())
        empty = {name: values.new_zeros(size, dtype=torch.float64) for name, size in _sizes(H, N).items()}
        sums = MatrixSums(valid=mask, sketch=values.new_zeros(0), **empty)
    sums.skipped += skipped
    if not len(values):
        return None, sums
    same_shape(str(call.site), tuple(sums.valid.shape), tuple(mask.shape))
    if not torch.equal(sums.valid, mask):
        raise EigenlensError(f"{call.site} was seen with two different masks; matrix spectra need one")
    pairs = Pairs(sums.valid)
    samples = pairs.vectors(values)
    sums.number += len(samples)
    sums.first += samples.sum(0)
    sums.squares += samples.square().sum(0)
    sums.row_energy += (pairs.row_means(samples).square() * pairs.row_counts).sum((0, 2))
    return samples, sums


def _sizes(H: int, N: int) -> dict[str, tuple[int, ...]]:
    return {"number": (), "skipped": (), "first": (H, N), "squares": (H, N), "row_energy": (H,)}


def _copy_add(mine: MatrixSums, theirs: MatrixSums) -> MatrixSums:
    same_shape("a site", tuple(mine.first.shape), tuple(theirs.first.shape))
    return mine.add_(theirs)


def _state(sites: dict[str, MatrixSums]) -> State:
    return {f"{site}/{name}": x.contiguous() for site, sums in sites.items() for name, x in vars(sums).items()}


def _sites(state: State) -> dict[str, MatrixSums]:
    return {site: MatrixSums(**parts) for site, parts in by_site(state).items()}
