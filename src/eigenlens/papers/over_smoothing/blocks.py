"""Every block of a post-norm encoder on every input.

It is the diagnostic of over-smoothing, with no input left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from ...diagnostics.smoothing import Smoothing
from ...errors import EigenlensError
from ...models.load import Model
from ..diagnostic_pass import Batch, DiagnosticPass


@dataclass(frozen=True)
class BlockMeasures:
    """One block on one input.

    `maps` is the cosine of its attention map, mean over heads, with that of the block before.
    """

    layer: int
    input: int
    similarity_in: float  # mean cos(h_i, h_j), i ≠ j
    similarity: float  # the same behind the block
    distance_in: float  # d_M
    distance: float
    maps: float | None
    s: float
    root: float  # √λ, the largest of the heads
    sigma: float  # σ₁ σ₂
    v: float
    gained: float
    sharp: float

    @property
    def ratio(self) -> float:
        return self.distance / self.distance_in if self.distance_in > 0 else 0.0

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def block_steps(model: nn.Module | Model, batches: Sequence[Batch]) -> list[BlockMeasures]:
    """Every block of a post-norm encoder on every input, block by block.

    The inputs must be without padding.
    """
    diagnostic_pass = DiagnosticPass(model, "smoothing", batches)
    studied, smoothing = diagnostic_pass.studied, diagnostic_pass.diagnostic
    assert isinstance(smoothing, Smoothing)
    if len(studied.stacks) != 1:
        name = type(studied.module).__name__
        raise EigenlensError(
            f"the bound is for an encoder alone; {name} has {len(studied.stacks)} stacks of blocks"
        )
    if smoothing.refused:
        raise EigenlensError(next(iter(smoothing.refused.values())))
    found: list[BlockMeasures] = []
    for number, (site, inputs) in enumerate(diagnostic_pass.values_per_input().items()):
        block = smoothing.blocks[site]
        for i, values in enumerate(inputs[..., 0].tolist()):
            of = dict(zip(smoothing.numbers, values))
            if of["v"] != of["v"]:
                raise EigenlensError(
                    "the bound is for tokens that all see each other: give inputs without padding"
                    " and mask"
                )
            # the first block has none before it
            maps = of["maps"] if of["maps"] == of["maps"] else None
            found.append(
                BlockMeasures(
                    number,
                    i,
                    of["similarity_before"],
                    of["similarity"],
                    of["distance_before"],
                    of["distance"],
                    maps,
                    block.s,
                    of["root"],
                    of["sigma"],
                    of["v"],
                    block.gain * of["v"],
                    of["sharp"],
                )
            )
    return found
