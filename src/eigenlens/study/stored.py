"""What a study found as tensors of its files, and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..spectra.bases import Place
from ..spectra.spectrum import Spectrum
from .recorder import Recording

KEPT_VECTORS = 16
"""Leading eigenvectors of whole matrices that a study keeps of every head."""


def spectra_tensors(spectra: list[Spectrum]) -> dict[str, Tensor]:
    """Spectra by analysis, level, centring and place, all heads of a place in one tensor."""
    grouped: dict[str, list[Spectrum]] = {}
    for s in spectra:
        layer = "" if s.layer is None else s.layer
        grouped.setdefault(f"{s.analysis}|{s.level}|{s.centring}|{s.stack}|{layer}", []).append(s)
    tensors: dict[str, Tensor] = {}
    for name, members in grouped.items():
        for part in ("eigenvalues", "held_out", "low", "high"):
            tensors[f"{name}|{part}"] = torch.from_numpy(np.stack([getattr(s, part) for s in members]))
        tensors[f"{name}|numbers"] = torch.tensor([[s.samples, s.dimensions, s.total] for s in members], dtype=torch.float64)
    return tensors


def read_spectra(tensors: dict[str, Tensor]) -> list[Spectrum]:
    spectra = []
    for name in [name for name in tensors if name.endswith("|numbers")]:
        prefix = name.removesuffix("|numbers")
        analysis, level, centring, stack, layer = prefix.split("|")
        for head, (samples, dimensions, total) in enumerate(tensors[name].tolist()):
            curves = {p: tensors[f"{prefix}|{p}"][head].numpy() for p in ("eigenvalues", "held_out", "low", "high")}
            spectra.append(
                Spectrum(
                    analysis=analysis, level=level, centring=centring, stack=stack,  # type: ignore[arg-type]
                    layer=int(layer) if layer else None, head=head if level == "head" else None,
                    samples=int(samples), dimensions=int(dimensions), total=total, **curves,
                )
            )  # fmt: skip
    order = {"rows": 0, "matrices": 1}
    return sorted(spectra, key=lambda s: (order[s.analysis], s.stack, -1 if s.layer is None else s.layer, s.head or 0))


def matrix_tensors(recording: Recording) -> dict[str, Tensor]:
    """Leading eigenvectors, mean and variance of every pair; over valid pairs, with the mask beside them."""
    analysis = recording.matrices
    tensors: dict[str, Tensor] = {}
    assert analysis is not None
    for site, sums in recording.fit["matrices"].result().items():
        if site not in analysis.pairs:
            continue
        bases = analysis.bases[Place.of(site, "head")]
        vectors = [basis.vectors("centred", KEPT_VECTORS) for basis in bases]
        mean = sums.first / sums.number
        tensors |= {
            f"{site}/valid": sums.valid,
            f"{site}/vectors": torch.stack(vectors),
            f"{site}/mean": mean.float(),
            f"{site}/variance": (sums.squares / sums.number - mean.square()).clamp_min(0).float(),
        }
    return tensors


def halves(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {"fit": {}, "held": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(":")
        parts[part][rest] = tensor
    return parts
