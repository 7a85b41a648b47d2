"""What a fitted basis consists of, for rows or for matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..captures import Site
from .centring import Centring
from .intervals import explained_with_interval
from .spectrum import Analysis, Level, Spectrum


@dataclass(frozen=True)
class Scope:
    """What a basis is fitted on: each head of a site, a whole layer, or a stack.

    A stack has no layer.
    """

    level: Level
    stack: str
    layer: int | None = None

    @classmethod
    def of(cls, site: Site, level: Level) -> Scope:
        return cls(level, site.stack, None if level == "stack" else site.layer)

    @property
    def at(self) -> Site | str:
        """The layer, or the name of the stack."""
        return self.stack if self.layer is None else Site(self.stack, self.layer)


@dataclass
class Energies:
    """Held-out variance of one group of documents: per component `energy (h, m)`, `total (h,)`."""

    energy: Tensor
    total: Tensor


Key = tuple[Scope, Centring]


def spectra_of(
    analysis: Analysis,
    key: Key,
    eigenvalues: Tensor,
    total: Tensor,
    samples: int,
    dimensions: int,
    groups: Sequence[dict[Key, Energies]],
    lower_bound: bool = False,
) -> list[Spectrum]:
    """Return one `Spectrum` per entry of `eigenvalues (h, m)`, with the groups' held-out curves."""
    scope, centring = key
    seen = [group[key] for group in groups if key in group]
    if seen:
        energy = np.stack([e.energy.numpy() for e in seen])  # (G, h, m)
        held, low, high = explained_with_interval(energy, np.stack([e.total.numpy() for e in seen]))
    else:
        held = low = high = np.full(tuple(eigenvalues.shape), np.nan)
    return [
        Spectrum(
            analysis=analysis,
            level=scope.level,
            centring=centring,
            stack=scope.stack,
            layer=scope.layer,
            head=index if scope.level == "head" else None,
            samples=samples,
            dimensions=dimensions,
            total=float(total[index]),
            eigenvalues=eigenvalues[index].numpy(),
            held_out=held[index],
            low=low[index],
            high=high[index],
            lower_bound=lower_bound,
        )
        for index in range(len(eigenvalues))
    ]
