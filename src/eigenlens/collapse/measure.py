"""What a collapse run measures: curves of every variant, path lengths, single paths, bounds. Plain rows throughout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..capture import Layer, attention_names, capture, capture_layers
from ..capture.layers import Kind
from ..explain.frozen import FrozenStack, freeze
from ..run.progress import Report
from ..sources.forward import forward_of
from ..sources.inputs import Batch, Inputs
from ..sources.models import Model
from ..stats import DepthMetrics
from ..stats.depth import mean_interval
from ..switches import Switches
from .ablation import ablated
from .bounds_model import bound_rows, depth_rows, model_bounds
from .marginals import head_marginals
from .paths import By, path_lengths
from .sampling import residuals_by_length


@dataclass
class Bench:
    """A model with its inputs, ready to be measured."""

    model: Model
    inputs: Inputs
    sinks: tuple[int, int]
    report: Report

    def batches(self, size: int, most: int | None = None) -> Iterator[Batch]:
        """At most so many inputs, whichever bucket they are in."""
        left = len(self.inputs.buckets) if most is None else most
        for group in self.inputs.groups:
            for number, batch in self.inputs.batches(group, size, stop=max(left, 0)):
                yield batch
                left -= number

    def single(self, most: int) -> Iterator[tuple[FrozenStack, ...]]:
        for batch in self.batches(1, most):
            yield freeze(self.model.backbone, batch, forward_of(self.model))

    @torch.no_grad()
    def curves(self, name: str, switches: Switches | None) -> list[dict[str, Any]]:
        """Every metric along depth with some parts off; None leaves the model alone."""
        backbone, forward, done = self.model.backbone, forward_of(self.model), 0
        statistic = DepthMetrics(sinks=self.sinks)

        def see(layer: Layer) -> None:
            """Of an ablated model the tokens tell enough; its patterns would cost most of the time."""
            statistic.update(layer if switches is None else replace(layer, calls=()))

        with nullcontext() if switches is None else ablated(backbone, switches), capture_layers(backbone, self.names, see):
            for batch in self.batches(max(1, 4096 // self.inputs.length)):
                forward(batch)
                done += len(next(iter(batch.values())))
                self.report(name, done, len(self.inputs.buckets))
        return [asdict(number) for number in statistic.result()]

    @cached_property
    def names(self) -> dict[str, Kind]:
        """The modules that attend, as one input shows them."""
        with capture(self.model.backbone) as calls:
            forward_of(self.model)(next(self.batches(1)))
        return attention_names(calls)

    @torch.no_grad()
    def paths(self, number: int, by: By) -> dict[str, Any]:
        """Terms by path length, what heads add, and the residual of single paths, of each stack."""
        lengths: dict[str, list[list[dict[str, Any]]]] = {}
        marginals: dict[str, list[torch.Tensor]] = {}
        single: dict[str, list[list[torch.Tensor]]] = {}
        errors = []
        for done, stacks in enumerate(self.single(number), 1):
            for frozen in stacks:
                if not frozen.heads:
                    continue
                found = path_lengths(frozen, by)
                errors.append(found.error)
                lengths.setdefault(frozen.name, []).append(found.rows())
                if len(set(frozen.heads)) == 1:
                    marginals.setdefault(frozen.name, []).append(head_marginals(frozen))
                    single.setdefault(frozen.name, []).append(residuals_by_length(frozen, PATHS, done))
            self.report("paths", done, number)
        return {
            "error": max(errors, default=None),
            "lengths": [{"stack": stack, **row} for stack, runs in lengths.items() for row in _averaged(runs)],
            "heads": [row for stack, found in marginals.items() for row in _head_rows(stack, torch.stack(found).mean(0))],
            "single": [row for stack, runs in single.items() for row in _single_rows(stack, runs)],
        }

    @torch.no_grad()
    def bounds(self, number: int) -> dict[str, Any]:
        """Bounds of every head, and composed over depth, of each stack."""
        heads: list[dict[str, Any]] = []
        depth: list[dict[str, Any]] = []
        found: dict[str, list[Any]] = {}
        first: dict[str, FrozenStack] = {}
        for done, stacks in enumerate(self.single(number)):
            for frozen in stacks:
                found.setdefault(frozen.name, []).extend((done, layer, bound) for _, layer, bound in model_bounds(frozen))
                first.setdefault(frozen.name, frozen)
            self.report("bounds", done + 1, number)
        for stack, bounds in found.items():
            heads += bound_rows(stack, bounds)
            depth += [{"stack": stack, **row} for row in depth_rows(first[stack], bounds)]
        return {"heads": heads, "depth": depth}


PATHS = 20
"""Random paths of each length whose product of patterns is looked at."""


def _single_rows(stack: str, runs: list[list[torch.Tensor]]) -> list[dict[str, Any]]:
    rows = []
    for hops, residuals in enumerate(zip(*runs), 1):
        mean, low, high = interval([float(r.mean()) for r in residuals])
        rows.append({"stack": stack, "attention_hops": hops, "residual": mean, "low": low, "high": high})
    return rows


def _averaged(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of single inputs as one: the mean of share, size and residual, with intervals."""
    rows = []
    for same in zip(*runs):
        row = dict(same[0])
        for key in ("share", "size", "residual"):
            row[key], row[f"{key}_low"], row[f"{key}_high"] = interval([float(one[key]) for one in same])
        rows.append(row)
    return rows


def _head_rows(stack: str, marginals: torch.Tensor) -> list[dict[str, Any]]:
    """One row a head: what it adds to the output over paths of each length."""
    return [
        {"stack": stack, "layer": layer, "head": head, "by_length": by_length.tolist(), "all": float(by_length.sum())}
        for layer, heads in enumerate(marginals)
        for head, by_length in enumerate(heads)
    ]


def interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """The mean and its 95 % interval over inputs; of one value there is none."""
    return mean_interval(len(values), sum(values), sum(value * value for value in values))
