"""What a collapse run measures: curves of every variant, path lengths, single paths, bounds.

All results are plain rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch

from ..anatomy.switches import Switches
from ..captures import attention_names, capture
from ..captures.layers import Kind
from ..data.inputs import Inputs
from ..models.forward import forward_of
from ..passes.model_ref import ModelRef
from ..passes.shards import all_of, make_shards, singles, to_device
from ..run.engine import Engine
from ..run.progress import Progress
from ..run.run_all import MergedShards, run_all
from ..run.shards import Job, Shard
from ..stats import DepthMetrics
from ..stats.intervals import t_interval
from .bounds_model import bound_rows
from .passes import BoundPass, CurvePass, PathPass, StackBounds, StackPaths
from .paths import By

S = TypeVar("S")
PHRASES = {
    "full": "the full model",
    "SAN": "pure attention (SAN)",
    "SAN+MLP": "attention and MLPs (SAN+MLP)",
    "SAN+skip": "attention with skips (SAN+skip)",
}
"""Variants as progress names them; the others are named by what is off."""
TOKENS = 1024
"""Inputs per shard: a run has few inputs, and the metrics take longer than the model."""


@dataclass
class CollapseRun:
    """A model with its inputs, ready to be measured.

    Each measurement returns `{"found": …, "failed": …}`: the rows, and one record per shard that
    failed.
    """

    model_ref: ModelRef
    inputs: Inputs
    sinks: tuple[int, int]
    engine: Engine
    progress: Progress

    def _run(self, what: str, job: Job[S], shards: list[Shard]) -> MergedShards[S]:
        total = sum(shard.size for shard in shards)
        stage = what.format(self.inputs.facts.count(total))
        return run_all(self.engine, job, shards, lambda done: self.progress(stage, done, total))

    def curves(self, name: str, switches: Switches | None) -> dict[str, Any]:
        """Measure every metric along depth with some parts off; with None, the plain model."""
        size = max(1, TOKENS // self.inputs.length)
        job = CurvePass(self.model_ref, self.engine.threads, switches, self.names, self.sinks)
        merged = self._run(
            f"running {{}} through {PHRASES.get(name, f'the model {name}')}",
            job,
            make_shards(self.inputs, all_of(self.inputs), size, size),
        )
        numbers = DepthMetrics.from_state(merged.state, sinks=self.sinks).result()
        return {"found": [asdict(number) for number in numbers], "failed": merged.failed}

    @cached_property
    def names(self) -> dict[str, Kind]:
        """The modules that attend when one input runs."""
        with torch.no_grad(), self.model_ref.running() as model, capture(model.backbone) as calls:
            forward_of(model)(to_device(self.inputs.make(all_of(self.inputs)[:1]), model.device))
        return attention_names(calls)

    def paths(self, number: int, by: By) -> dict[str, Any]:
        """Measure each stack: terms by path length, what heads add, residuals of single paths."""
        job = PathPass(self.model_ref, self.engine.threads, by)
        merged = self._run(
            "splitting the output of {} into paths",
            job,
            singles(self.inputs, all_of(self.inputs)[:number]),
        )
        stacks: dict[str, list[StackPaths]] = {}
        for one in (stack for stacks_ in merged.state for stack in stacks_):
            stacks.setdefault(one.stack, []).append(one)
        return {"found": _path_tables(stacks), "failed": merged.failed}

    def bounds(self, number: int) -> dict[str, Any]:
        """Compute the bounds of every head, and those composed over depth, for each stack."""
        job = BoundPass(self.model_ref, self.engine.threads)
        merged = self._run(
            "computing bounds on {}", job, singles(self.inputs, all_of(self.inputs)[:number])
        )
        stacks: dict[str, list[StackBounds]] = {}
        for one in merged.state:
            stacks.setdefault(one.stack, []).append(one)
        heads: list[dict[str, Any]] = []
        depth: list[dict[str, Any]] = []
        for stack, runs in stacks.items():
            heads += bound_rows(
                stack, [(run.place, layer, bound) for run in runs for layer, bound in run.layers]
            )
            depth += [{"stack": stack, **row} for run in runs for row in run.depth]
        return {"found": {"heads": heads, "depth": depth}, "failed": merged.failed}


def _path_tables(stacks: dict[str, list[StackPaths]]) -> dict[str, Any]:
    """Join the results of all inputs, stack by stack."""
    marginals = {
        stack: [run.marginals for run in runs if run.marginals is not None]
        for stack, runs in stacks.items()
    }
    return {
        "error": max((run.error for runs in stacks.values() for run in runs), default=None),
        "lengths": [
            {"stack": stack, **row}
            for stack, runs in stacks.items()
            for row in _averaged([r.rows for r in runs])
        ],
        "heads": [
            row
            for stack, some in marginals.items()
            if some
            for row in _head_rows(stack, torch.stack(some).mean(0))
        ],
        "single": [
            row
            for stack, runs in stacks.items()
            for row in _single_rows(stack, [r.single for r in runs if r.single])
        ],
    }


def _single_rows(stack: str, runs: list[list[float]]) -> list[dict[str, Any]]:
    rows = []
    for hops, residuals in enumerate(zip(*runs), 1):
        mean, low, high = t_interval(list(residuals))
        rows.append(
            {"stack": stack, "attention_hops": hops, "residual": mean, "low": low, "high": high}
        )
    return rows


def _averaged(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Join the rows of single inputs: means of share, size and residual, with intervals."""
    rows = []
    for same in zip(*runs):
        row = dict(same[0])
        for key in ("share", "size", "residual"):
            row[key], row[f"{key}_low"], row[f"{key}_high"] = t_interval(
                [float(one[key]) for one in same]
            )
        rows.append(row)
    return rows


def _head_rows(stack: str, marginals: torch.Tensor) -> list[dict[str, Any]]:
    """One row per head: what it adds to the output over paths of each length."""
    return [
        {
            "stack": stack,
            "layer": layer,
            "head": head,
            "by_length": by_length.tolist(),
            "all": float(by_length.sum()),
        }
        for layer, heads in enumerate(marginals)
        for head, by_length in enumerate(heads)
    ]
