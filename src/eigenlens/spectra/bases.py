"""What a fitted basis is made of, in whichever space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .centring import Centring
from .intervals import explained_with_interval
from .spectrum import Analysis, Level, Spectrum


@dataclass(frozen=True)
class Place:
    """Whose spectrum: the heads of a site, a layer as a whole, or a stack."""

    level: Level
    stack: str
    layer: int | None = None

    @classmethod
    def of(cls, site: str, level: Level) -> Place:
        """The place of a site such as `encoder/3`."""
        stack, _, layer = site.rpartition("/")
        return cls(level, stack, None if level == "stack" else int(layer))


@dataclass
class Energies:
    """Held-out variance of one group of documents along each component, `energy (h, m)`, and in
    all, `total (h,)`.
    """

    energy: Tensor
    total: Tensor


Key = tuple[Place, Centring]


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
    """One `Spectrum` for each of the h entries of `eigenvalues (h, m)`, with the held-out curves of
    the groups.
    """
    place, centring = key
    seen = [group[key] for group in groups if key in group]
    if seen:
        energy = np.stack([e.energy.numpy() for e in seen])  # (G, h, m)
        held, low, high = explained_with_interval(energy, np.stack([e.total.numpy() for e in seen]))
    else:
        held = low = high = np.full(tuple(eigenvalues.shape), np.nan)
    return [
        Spectrum(
            analysis=analysis,
            level=place.level,
            centring=centring,
            stack=place.stack,
            layer=place.layer,
            head=index if place.level == "head" else None,
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
