"""Project held-out score matrices on bases that are already known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..captures import AttentionCall
from .matrices import matrix_samples
from .statistic import State, add_sites
from .workspace import Workspace


@dataclass
class ProjectionSums:
    """Sums over held-out inputs, with `a = Zx` for a basis Z (m, N), a vector a row.

    In the basis of a head, one entry per head; in the basis of a layer or stack, the sum over its
    heads.
    """

    number: Tensor  # () samples
    energy: Tensor  # (h,) Σ ‖x‖²
    row_energy: Tensor  # (h,) Σ ‖x − Px‖², the energy of the row means
    first: Tensor  # (h, m) Σ a
    second: Tensor  # (h, m, m) Σ a aᵀ

    def plus(self, other: ProjectionSums) -> ProjectionSums:
        return ProjectionSums(**{name: x + getattr(other, name) for name, x in vars(self).items()})


@dataclass
class MatrixProjection:
    """Projects every complete input on fixed bases, by head, layer and stack.

    Cost: `3·N·m` per head; memory `8·m²` bytes.

    `bases` maps a name to Z: `encoder/3` → (H, m, N) by head, `encoder/3/layer` → (m, N),
    `encoder/stack` → (m, N).
    """

    bases: dict[str, Tensor]
    of: Literal["scores", "pattern"] = "scores"
    sums: dict[str, ProjectionSums] = field(default_factory=dict)
    _space: Workspace = field(default_factory=Workspace, repr=False)

    @torch.no_grad()
    def update(self, call: AttentionCall) -> None:
        site = str(call.site)
        if site not in self.bases:
            return
        found = matrix_samples(call, self.of, None, self._space)
        if found is None or found[0].shape[2] != self.bases[site].shape[2]:
            return
        samples, site_sums = found
        energy, row_energy = site_sums.squares.sum(1), site_sums.row_energy
        for name in (site, f"{site}/layer", f"{call.site.stack}/stack"):
            basis = self.bases.get(name)
            if basis is None:
                continue
            pooled = basis.ndim == 2
            # (h, B, m)
            a = (samples.view(1, -1, samples.shape[2]) if pooled else samples).to(
                basis.dtype
            ) @ basis.mT
            new = ProjectionSums(
                number=site_sums.number * (len(samples) if pooled else 1),
                energy=energy.sum(0, keepdim=True) if pooled else energy,
                row_energy=row_energy.sum(0, keepdim=True) if pooled else row_energy,
                first=a.sum(1, dtype=torch.float64),
                second=(a.transpose(1, 2) @ a).double(),
            )
            self.sums[name] = self.sums[name].plus(new) if name in self.sums else new

    def merge(self, other: Self) -> None:
        add_sites(self.sums, other.sums, ProjectionSums.plus)

    def state(self) -> State:
        return {
            f"{name}/{part}": x.contiguous()
            for name, sums in self.sums.items()
            for part, x in vars(sums).items()
        }

    @classmethod
    def from_state(cls, state: State, **settings: Any) -> Self:
        found: dict[str, State] = {}
        for key, x in state.items():
            name, _, part = key.rpartition("/")
            found.setdefault(name, {})[part] = x
        return cls(
            **settings, sums={name: ProjectionSums(**parts) for name, parts in found.items()}
        )

    def result(self) -> dict[str, ProjectionSums]:
        return self.sums
