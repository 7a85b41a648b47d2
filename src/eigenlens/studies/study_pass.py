"""One pass of a model over a shard of a study's inputs, into states that merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ..captures import (
    AttentionCall,
    Layer,
    Site,
    SiteInfo,
    attention_kinds,
    block_paths,
    capture,
    capture_layers,
)
from ..diagnostics import DIAGNOSTICS, StudiedModel
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..models.load import Model
from ..passes.model_ref import ModelRef
from ..passes.shards import ShardBatches, to_device
from ..run.arrays import aligned, as_arrays, as_tensors
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
    WithinSpectra,
)
from ..stats.statistic import by_site
from .diagnostic_runner import DiagnosticRunner, diagnostics_of
from .options import Options
from .survey import DepthForm, WithinForm, longest_of

Kinds = Mapping[str, Literal["self", "cross"]]
IN_WORDS = {"within": "spectra within one input", "depth": "metrics along depth"}
"""Parts of a state that a message does not call by their names."""


@dataclass
class Pass:
    """What a stage of a study does with every shard: the job that an engine runs.

    `matrices` says what happens to whole matrices: they are kept as samples, at most `most`; added
    to a sketch, by their products with the `sketch_tests`; or projected on `bases`.
    """

    model_ref: ModelRef
    options: Options
    sites: dict[Site, SiteInfo]
    depth: DepthForm | None
    threads: int
    matrices: Literal["samples", "sketch", "projection"] | None = None
    most: int = 0
    sketch_tests: State = field(default_factory=dict)
    bases: State = field(default_factory=dict)
    within: WithinForm | None = None
    # made once for the model; every shard begins with a fresh copy
    runner: DiagnosticRunner | None = field(default=None, repr=False)
    # sketches of a shard that was merged, whose memory the next shard uses
    _spare: dict[Site, Tensor] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        arrays = {name: as_arrays(getattr(self, name)) for name in ("sketch_tests", "bases")}
        return {**vars(self), **arrays, "runner": None, "_spare": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = {name: aligned(as_tensors(state[name])) for name in ("sketch_tests", "bases")}
        vars(self).update({**state, **tensors})

    def run(self, content: ShardBatches, tick: Tick) -> State:
        """Run one shard and return its state.

        Its batches go through the model, and capture hands every attention call and every block to
        statistics and diagnostics.
        """
        with self.model_ref.running() as model:
            self.sketch_tests = to_device(self.sketch_tests, model.device)
            self.bases = to_device(self.bases, model.device)
            statistics, depth = self.statistics(), self.depth_metrics()
            if isinstance(sketch := statistics.get("matrices"), MatrixSketch):
                sketch.spare, self._spare = self._spare, {}
            within, runner = self.within_spectra(), self._fresh_runner(model)
            shown = CaptureRun(statistics, within, depth, runner, self.options.before_rope)
            forward, done = forward_of(model), 0
            with torch.no_grad(), shown.installed(model, self.block_names):
                for batch in content.batches:
                    on_device = to_device(batch, model.device)
                    shown.next_batch(on_device, content.first + done)
                    forward(on_device)
                    done += len(next(iter(batch.values())))
                    tick(done)
            sums = pack_states(statistics)
            for name, found in (("depth", depth), ("within", within)):
                if found is not None:
                    sums |= {f"{name}:{key}": x for key, x in found.state().items()}
            _check_finite(sums)
            state = {**sums, **({} if runner is None else runner.state())}
        return {name: x.cpu() for name, x in state.items()}

    def merge(self, mine: State, theirs: State) -> State:
        one, other = self._everything(mine), self._everything(theirs)
        for name, statistic in one.items():
            statistic.merge(other[name])
        return pack_states(one)

    def recycle(self, state: State) -> None:
        if self.matrices == "sketch":
            own = by_site(unpack_states(state, ["matrices"])["matrices"])
            self._spare = {site: parts["sketch"] for site, parts in own.items()}

    def _everything(self, state: State) -> dict[str, Any]:
        alongside = {"depth": self.depth_metrics(state), "within": self.within_spectra(state)}
        return {
            **self.statistics(state),
            **{name: found for name, found in alongside.items() if found is not None},
            **{
                f"diagnostic {name}": found
                for name, found in diagnostics_of(state, self.diagnosed).items()
            },
        }

    def statistics(self, state: State | None = None) -> dict[str, Statistic]:
        """The statistics that see attention calls, by name, empty or from a state."""
        parts = unpack_states(state or {}, ["rows", "moments", "matrices"])
        made: dict[str, Any] = {}
        of = self.options.of
        if "rows" in self.options.only:
            made["rows"] = RowMoments.from_state(parts["rows"], of=of)
        if "moments" in self.options.only:
            made["moments"] = QueryKeyMoments.from_state(parts["moments"])
        if self.matrices == "samples":
            made["matrices"] = MatrixGram.from_state(parts["matrices"], of=of, most=self.most)
        elif self.matrices == "sketch":
            made["matrices"] = MatrixSketch.from_state(
                parts["matrices"],
                tests={Site.parse(name): x for name, x in self.sketch_tests.items()},
                of=of,
            )
        elif self.matrices == "projection":
            made["matrices"] = MatrixProjection.from_state(
                parts["matrices"], bases=self.bases, of=of
            )
        return made

    def depth_metrics(self, state: State | None = None) -> DepthMetrics | None:
        """The metrics along depth, empty or from a state; None if they are left out."""
        if self.depth is None:
            return None
        own = unpack_states(state or {}, ["depth"])["depth"]
        return DepthMetrics.from_state(own, sinks=self.depth.sinks, every=self.depth.every)

    def within_spectra(self, state: State | None = None) -> WithinSpectra | None:
        """The spectra within one input, empty or from a state; None if they are left out."""
        if self.within is None:
            return None
        own = unpack_states(state or {}, ["within"])["within"]
        return WithinSpectra.from_state(own, **asdict(self.within))

    @property
    def diagnosed(self) -> dict[str, dict[str, Any]]:
        """The diagnostics that see inputs of the study, with their settings.

        The others run inputs of their own.
        """
        seeing = {"calls", "layers"}
        return {
            name: given
            for name, given in self.options.diagnosed.items()
            if DIAGNOSTICS[name].sees in seeing
        }

    def diagnostic_runner(
        self,
        model: Model,
        settings: Mapping[str, Mapping[str, Any]],
        states: Mapping[str, State] | None = None,
    ) -> DiagnosticRunner:
        """The runner of these diagnostics, ready for the model."""
        studied = StudiedModel(model, self.sites)
        every = self.options.diagnostics_step(longest_of(self.sites))
        return DiagnosticRunner.of(studied, settings, every, states, bool(self.block_names))

    def _fresh_runner(self, model: Model) -> DiagnosticRunner | None:
        if self.runner is None and self.diagnosed:
            self.runner = self.diagnostic_runner(model, self.diagnosed)
        return None if self.runner is None else self.runner.fresh()

    @property
    def block_names(self) -> Kinds:
        """The attention modules whose blocks are to be seen; empty if nothing needs blocks."""
        wanted = self.depth is not None or self.options.diagnosed
        names = attention_kinds(self.sites)
        return names if wanted and block_paths(names) else {}


@dataclass
class CaptureRun:
    """Distributes what the passes over a shard show.

    Calls go to the statistics and the diagnostics, blocks to the metrics along depth and the
    diagnostics.
    """

    statistics: Mapping[str, Statistic]
    within: WithinSpectra | None
    depth: DepthMetrics | None
    runner: DiagnosticRunner | None
    before_rope: bool
    first: int = 0  # the place of the batch's first input among all inputs of the study

    @contextmanager
    def installed(self, model: Model, names: Kinds) -> Iterator[None]:
        """Capture the passes; `names` are the modules whose blocks are seen, if any.

        With `before_rope` a second capture undoes the rotation of queries and keys for the
        statistics; diagnostics always see the patterns that the model itself makes.
        """
        with ExitStack() as hooks:
            if self.runner is not None:
                hooks.enter_context(self.runner.attached())
            if self.before_rope:
                hooks.enter_context(capture(model.backbone, self._see_turned, before_rope=True))
            if names:
                hooks.enter_context(
                    capture_layers(model.backbone, names, self._see_layer, calls=self._see)
                )
            elif not self.before_rope or self.runner is not None:
                hooks.enter_context(capture(model.backbone, self._see))
            yield

    def next_batch(self, batch: Mapping[str, Tensor], first: int) -> None:
        """Announce the pass over a batch."""
        self.first = first
        if self.runner is not None:
            self.runner.shown(batch, first)

    def _see(self, call: AttentionCall) -> None:
        if self.runner is not None:
            self.runner.call(call)
        if not self.before_rope:
            self._see_turned(call)

    def _see_turned(self, call: AttentionCall) -> None:
        for statistic in self.statistics.values():
            statistic.update(call)
        if self.within is not None:
            self.within.update(call, self.first)

    def _see_layer(self, layer: Layer) -> None:
        if self.depth is not None:
            self.depth.update(layer, self.first)
        if self.runner is not None:
            self.runner.layer(layer)


def _check_finite(sums: State) -> None:
    """Raise an error if a state is not finite, while it is known which inputs it came from.

    The extremes of a tensor say so without a mask of its size.
    """
    for name, x in sums.items():
        if (
            x.is_floating_point()
            and x.numel()
            and not bool(torch.stack(x.aminmax()).isfinite().all())
        ):
            part = name.partition(":")[0]
            raise EigenlensError(
                f"its {IN_WORDS.get(part, part)} are not finite; check the model and its inputs"
            )
