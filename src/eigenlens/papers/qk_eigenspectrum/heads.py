"""The spectra of loaded models' heads beside how near each head looks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...attention.qk import spectrum
from ...capture import AttentionCall, capture
from ...explain.truncation import query_weights
from ...sources.models import load
from ..inputs import batches_of


def distances(tokens: int, vision: bool) -> Tensor:
    """Between tokens (T, T): of their places in a text, or of patches in their square grid, nan for the tokens before them."""
    if not vision:
        place = torch.arange(tokens, dtype=torch.float64)
        return (place[:, None] - place).abs()
    side = math.isqrt(tokens)
    first = tokens - side * side
    row, column = torch.arange(side * side) // side, torch.arange(side * side) % side
    grid = torch.stack([row, column], 1).double()
    found = torch.full((tokens, tokens), torch.nan, dtype=torch.float64)
    found[first:, first:] = torch.cdist(grid, grid)
    return found


@dataclass
class Nearness:
    """Sums over inputs of where a layer's heads look, by rounded distance: `weight` and `above` are (H, bins)."""

    distance: Tensor  # (T, T)
    inputs: int = 0
    weight: Tensor | None = None
    above: Tensor | None = None

    def see(self, A: Tensor) -> None:
        """Patterns (B, H, T, T)."""
        known = ~self.distance.isnan()
        bins = self.distance[known].round().long()
        A = A.double()
        chosen = A[..., known]  # (B, H, pairs)
        parts = [chosen.sum(0), (chosen > 1 / A.shape[-1]).double().sum(0)]
        sums = [torch.zeros(A.shape[1], int(bins.max()) + 1, dtype=A.dtype).index_add_(1, bins, part) for part in parts]
        self.weight = sums[0] if self.weight is None else self.weight + sums[0]
        self.above = sums[1] if self.above is None else self.above + sums[1]
        self.inputs += len(A)

    def rows(self) -> list[dict[str, float]]:
        """For each head: mean distance over that of uniform attention, entropy of the profile over that, ρ near and far.

        The profile is the weight at each rounded distance. ρ is the share of pairs that get more than 1/T, at distances up
        to 2 and beyond.
        """
        assert self.weight is not None and self.above is not None
        count = torch.bincount(self.distance[~self.distance.isnan()].round().long()).double()  # (bins,)
        at = torch.arange(len(count), dtype=torch.float64)
        uniform = count / count.sum()
        found = []
        for weight, above in zip(self.weight, self.above):
            profile = weight / weight.sum()
            share = above / (count * self.inputs).clamp_min(1)
            near = (share * count)[:3].sum() / count[:3].sum()
            found.append({
                "distance": float(profile @ at / (uniform @ at)),
                "profile entropy": float(torch.special.entr(profile).sum() / torch.special.entr(uniform).sum()),
                "rho near": float(near), "rho far": float((share * count)[3:].sum() / count[3:].sum()),
            })  # fmt: skip
        return found


@torch.no_grad()
def head_rows(name: str, inputs: int, length: int, text: str, seed: int) -> list[dict[str, Any]]:
    """A row for every head of a model of the catalogue: its spectrum, and where it looks on real inputs."""
    model = load(name)
    vision = model.kind == "vision"
    seen: dict[str, Nearness] = {}

    def note(call: AttentionCall) -> None:
        A = call.pattern()  # (B, H, T, T)
        seen.setdefault(call.name, Nearness(distances(A.shape[-1], vision))).see(A)

    with capture(model.module, note):
        for batch in batches_of(model, "photos" if vision else text, None if vision else length, inputs, seed, 4):
            model.module(**batch)
    rows = []
    for layer, queries in enumerate(query_weights(model.module)):
        w = queries.weights
        found = spectrum(w.query.double(), w.key.double().repeat_interleave(w.group, 0))
        looks = seen[queries.path].rows()
        for head in range(queries.heads):
            mean, variance = float(found.mean[head]), float(found.variance[head])
            rows.append({
                "model": name, "layer": layer, "head": head, "mean": mean, "variance": variance,
                "signed variance": float(found.signed[head]), "concentration": abs(mean) / math.sqrt(variance),
                "trace": float(found.trace[head]), "trace of square": float(found.trace_of_square[head]),
                "square": float(found.square[head]),
                "real part of largest": float(found.eigenvalues[head][found.eigenvalues[head].abs().argmax()].real),
                "share complex": float((found.eigenvalues[head].imag.abs() > 1e-9).double().mean()), **looks[head],
            })  # fmt: skip
    return rows
