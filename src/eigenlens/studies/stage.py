"""The pass of a model over a shard of a study's inputs, into mergeable states."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..captures import AttentionCall, Layer, block_paths, capture, capture_layers
from ..diagnostics import DIAGNOSTICS, StudiedModel
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..passes.model_ref import ModelRef
from ..passes.shards import ShardBatches, moved
from ..run.arrays import as_arrays, as_tensors
from ..run.checkpoints import pack_states, unpack_states
from ..run.shards import Tick
from ..stats import (
    DepthMetrics,
    MatrixGram,
    MatrixProjection,
    MatrixSketch,
    QueryKeyMoments,
    RowMoments,
    State,
    Statistic,
)
from .diagnostic_runner import DiagnosticRunner, diagnostics_of
from .options import Options
from .survey import DepthForm, longest_of, names_of


@dataclass
class Pass:
    """What a stage of a study does with every shard; `against` are the tests of a sketch or the
    bases of a projection.
    """

    model_ref: ModelRef
    options: Options
    sites: dict[str, dict[str, Any]]
    depth: DepthForm | None
    threads: int
    matrices: Literal["samples", "sketch", "projection"] | None = None
    against: State = field(default_factory=dict)
    most: int = 0  # inputs in samples
    _own: DiagnosticRunner | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_own": None, "against": as_arrays(self.against)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({**state, "against": as_tensors(state["against"])})

    @property
    def names(self) -> dict[str, Any]:
        """Of the attention modules, where blocks are to be seen."""
        named = names_of(self.sites)
        return (
            named
            if block_paths(named) and (self.depth is not None or self.options.diagnosed)
            else {}
        )

    @property
    def diagnosed(self) -> dict[str, dict[str, Any]]:
        """The diagnostics that see inputs of the study."""
        seeing = {"calls", "layers"}
        return {
            name: given
            for name, given in self.options.diagnosed.items()
            if DIAGNOSTICS[name].sees in seeing
        }

    def statistics(self, state: State | None = None) -> dict[str, Statistic]:
        """What the stage accumulates, from a state or from nothing; diagnostics are apart."""
        parts = unpack_states(state or {}, ["rows", "moments", "matrices", "depth"])
        made: dict[str, Any] = {}
        of = self.options.of
        if "rows" in self.options.only:
            made["rows"] = RowMoments.from_state(parts["rows"], of=of)
        if "moments" in self.options.only:
            made["moments"] = QueryKeyMoments.from_state(parts["moments"])
        if self.matrices == "samples":
            made["matrices"] = MatrixGram.from_state(parts["matrices"], of=of, most=self.most)
        elif self.matrices == "sketch":
            made["matrices"] = MatrixSketch.from_state(parts["matrices"], tests=self.against, of=of)
        elif self.matrices == "projection":
            made["matrices"] = MatrixProjection.from_state(
                parts["matrices"], bases=self.against, of=of
            )
        if self.depth is not None:
            made["depth"] = DepthMetrics.from_state(
                parts["depth"], sinks=self.depth.sinks, every=self.depth.every
            )
        return made

    def _diagnostics(self, state: State) -> dict[str, Any]:
        return {
            f"diagnostic {name}": found
            for name, found in diagnostics_of(state, self.diagnosed).items()
        }

    def merge(self, mine: State, theirs: State) -> State:
        one, other = (
            {**self.statistics(state), **self._diagnostics(state)} for state in (mine, theirs)
        )
        for name, statistic in one.items():
            statistic.merge(other[name])
        return pack_states(one)

    def run(self, content: ShardBatches, tick: Tick) -> State:
        with self.model_ref.running() as model:
            self.against = {name: x.to(model.device) for name, x in self.against.items()}
            if self._own is None and self.diagnosed:
                studied = StudiedModel(model, self.sites)
                every = self.options.every_diagnosed(longest_of(self.sites))
                self._own = DiagnosticRunner.of(
                    studied, self.diagnosed, every, blocks=bool(self.names)
                )
            statistics = self.statistics()
            own = None if self._own is None else self._own.fresh()
            CaptureRun(self, statistics, own).over(content, tick)
            summed = pack_states(statistics)
            # in the sums of the study nobody could tell any more whose fault it is
            for name, x in summed.items():
                if not bool(torch.isfinite(x).all()):
                    raise EigenlensError(
                        f"its {name.partition(':')[0]} are not finite; the model or its inputs are"
                        " broken"
                    )
            found = {**summed, **({} if own is None else own.state())}
        return {name: x.cpu() for name, x in found.items()}


@dataclass
class CaptureRun:
    """Capture, installed for statistics and diagnostics."""

    stage: Pass
    statistics: dict[str, Statistic]
    own: DiagnosticRunner | None  # sees the model's own patterns, behind the rotary embedding
    place: int = 0  # of the batch's first input among all inputs of the study

    def _sink(self, call: AttentionCall) -> None:
        for name, statistic in self.statistics.items():
            if name != "depth":
                statistic.update(call)

    def _see(self, call: AttentionCall) -> None:
        if self.own is not None:
            self.own.call(call)
        if not self.stage.options.before_rope:
            self._sink(call)

    def _measure(self, layer: Layer) -> None:
        depth = self.statistics.get("depth")
        if isinstance(depth, DepthMetrics):
            depth.update(layer, self.place)
        if self.own is not None:
            self.own.layer(layer)

    def over(self, content: ShardBatches, tick: Tick) -> None:
        model, done = self.stage.model_ref.model, 0
        run, names = forward_of(model), self.stage.names
        with torch.no_grad(), ExitStack() as hooks:
            if self.own is not None:
                hooks.enter_context(self.own.attached())
            if self.stage.options.before_rope:
                hooks.enter_context(capture(model.backbone, self._sink, before_rope=True))
            if names:
                hooks.enter_context(
                    capture_layers(model.backbone, names, self._measure, calls=self._see)
                )
            elif not self.stage.options.before_rope or self.own is not None:
                hooks.enter_context(capture(model.backbone, self._see))
            for batch in content.batches:
                self.place = content.first + done
                there = moved(batch, model.device)
                if self.own is not None:
                    self.own.shown(there, self.place)
                run(there)
                done += len(next(iter(batch.values())))
                tick(done)
