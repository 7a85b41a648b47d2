"""What a collapse run does with a shard of its inputs, into states that merge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..anatomy.frozen import FrozenStack, freeze
from ..anatomy.switches import Switches
from ..captures import Layer, capture_layers
from ..captures.layers import Kind
from ..models.forward import forward_of
from ..passes.model_ref import ModelRef
from ..passes.shards import ShardBatches, to_device
from ..run.shards import Tick
from ..stats import DepthMetrics, State
from .ablation import ablate
from .bounds_layers import LayerBound
from .bounds_model import depth_rows, model_bounds
from .marginals import head_marginals
from .paths import By, decompose_paths
from .sampling import residuals_by_length

PATHS = 20
"""Random paths per length whose product of patterns is measured."""


@dataclass
class CurvePass:
    """Measures every metric along depth with some parts off; with None, the plain model.

    The state is that of `DepthMetrics`.
    """

    model_ref: ModelRef
    threads: int
    switches: Switches | None
    names: dict[str, Kind]  # the modules that attend
    sinks: tuple[int, int]

    @torch.no_grad()
    def run(self, content: ShardBatches, tick: Tick) -> State:
        statistic, done = DepthMetrics(sinks=self.sinks), 0

        def see(layer: Layer) -> None:
            """Leave the patterns of an ablated model out: they would take most of the time.

            Its tokens tell enough.
            """
            statistic.update(layer if self.switches is None else replace(layer, calls=()))

        with self.model_ref.running() as model:
            backbone, forward = model.backbone, forward_of(model)
            off = nullcontext() if self.switches is None else ablate(backbone, self.switches)
            with off, capture_layers(backbone, self.names, see):
                for batch in content.batches:
                    forward(to_device(batch, model.device))
                    done += len(next(iter(batch.values())))
                    tick(done)
        return statistic.state()

    def merge(self, mine: State, theirs: State) -> State:
        one, other = (DepthMetrics.from_state(state, sinks=self.sinks) for state in (mine, theirs))
        one.merge(other)
        return one.state()


@dataclass(frozen=True)
class StackPaths:
    """One stack of one input by path length.

    It has the rows of terms and, if all layers have equally many heads, what heads add.
    """

    stack: str
    error: float
    rows: list[dict[str, Any]]
    marginals: torch.Tensor | None  # (layers, heads, lengths)
    single: list[float]  # mean residual of random paths of 1, 2, … hops


@dataclass
class PathPass:
    """Splits the output by path length; the state has a list of stacks per input."""

    model_ref: ModelRef
    threads: int
    by: By

    @torch.no_grad()
    def run(self, content: ShardBatches, tick: Tick) -> list[list[StackPaths]]:
        found = []
        for place, stacks in _frozen(self.model_ref, content, tick):
            found.append([self._of(frozen, place + 1) for frozen in stacks if frozen.heads])
        return found

    def _of(self, frozen: FrozenStack, seed: int) -> StackPaths:
        lengths, marginals, single = decompose_paths(frozen, self.by), None, []
        if len(set(frozen.heads)) == 1:
            marginals = head_marginals(frozen).cpu()
            single = [
                float(residuals.mean()) for residuals in residuals_by_length(frozen, PATHS, seed)
            ]
        return StackPaths(frozen.name, lengths.error, lengths.rows(), marginals, single)

    def merge(self, mine: list[Any], theirs: list[Any]) -> list[Any]:
        return mine + theirs


@dataclass(frozen=True)
class StackBounds:
    """The bounds of one stack on one input.

    They have the index of the input, the bounds of every layer and, for the first input, those
    composed over depth.
    """

    stack: str
    place: int
    layers: list[tuple[int, LayerBound]]
    depth: list[dict[str, Any]]


@dataclass
class BoundPass:
    """Computes the bounds of every head; the state has the stacks of all inputs in order."""

    model_ref: ModelRef
    threads: int

    @torch.no_grad()
    def run(self, content: ShardBatches, tick: Tick) -> list[StackBounds]:
        found = []
        for place, stacks in _frozen(self.model_ref, content, tick):
            for frozen in stacks:
                bounds = list(model_bounds(frozen))
                depth = depth_rows(frozen, bounds) if place == 0 else []
                found.append(
                    StackBounds(
                        frozen.name, place, [(layer, bound) for _, layer, bound in bounds], depth
                    )
                )
        return found

    def merge(self, mine: list[StackBounds], theirs: list[StackBounds]) -> list[StackBounds]:
        return mine + theirs


def _frozen(
    model_ref: ModelRef, content: ShardBatches, tick: Tick
) -> Iterator[tuple[int, tuple[FrozenStack, ...]]]:
    """Yield the index of every input, and the model frozen at it."""
    with model_ref.running() as model:
        for done, batch in enumerate(content.batches):
            yield (
                content.first + done,
                freeze(model.backbone, to_device(batch, model.device), forward_of(model)),
            )
            tick(done + 1)
