"""One diagnostic over the inputs of a paper.

A study measures the expensive parts of a diagnostic on a sample of its inputs; a claim is about all
inputs, so here every input is measured in full. The current engine does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..captures import AttentionCall, Site, SiteInfo, attention_kinds, capture, capture_layers
from ..diagnostics import DIAGNOSTICS, Diagnostic, StudiedModel
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..models.load import Model, load
from ..passes.model_ref import ModelRef
from ..passes.shards import ShardBatches, to_device
from ..run.engine import Local, choose_engine, use_engine
from ..run.run_all import describe_failures, run_all
from ..run.shards import Shard, Tick
from ..stats import State
from ..studies.diagnostic_runner import DiagnosticRunner

Batch = Mapping[str, Tensor]


def find_sites(model: Model, run: Callable[[], Any]) -> StudiedModel:
    """The model with the sites whose attention is called during `run`, one forward pass."""
    sites: dict[Site, SiteInfo] = {}

    def note(call: AttentionCall) -> None:
        sites[call.site] = SiteInfo.of_call(call)

    with torch.no_grad(), capture(model.backbone, note):
        run()
    return StudiedModel(model, sites)


def start_diagnostic(diagnostic: Diagnostic, studied: StudiedModel) -> None:
    """Prepare a diagnostic for a model; an `EigenlensError` if it does not apply to that model."""
    if why := diagnostic.begin(studied):
        raise EigenlensError(f"{studied.model.name}: {why}")


class AllInputsRunner(DiagnosticRunner):
    """Runs one diagnostic, with its expensive parts on every input.

    An `EigenlensError` if the diagnostic does not apply to the model.
    """

    def __init__(self, studied: StudiedModel, diagnostic: Diagnostic) -> None:
        super().__init__(studied, {}, 1)
        start_diagnostic(diagnostic, studied)
        self.diagnostics = {diagnostic.name: diagnostic}

    def _sampled(self, size: int) -> list[int]:
        return list(range(size))


class _ValueKeeper:
    """Takes the place of a diagnostic's `update`.

    Keeps the values (B, numbers, H) that the diagnostic measures at each site, instead of summing
    them up.
    """

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        self.values: dict[str, Tensor] = {}

    def __call__(self, seen: Any) -> None:
        values = self.diagnostic.measure(seen)
        if values is not None:
            self.values = join_values(self.values, {str(seen.site): values.cpu()})


def join_values(mine: State, theirs: State) -> State:
    """Values (N, …) by site, with those of further inputs appended."""
    return {
        **mine,
        **{site: torch.cat([mine[site], x]) if site in mine else x for site, x in theirs.items()},
    }


@dataclass
class DiagnosticJob:
    """The job of a shard: forward passes that the diagnostic `name` sees.

    The state is that of the diagnostic, or with `keep` all values that it measures, by site.
    """

    model_ref: ModelRef
    threads: int
    sites: Mapping[Site, SiteInfo]
    name: str
    keep: bool
    _runner: AllInputsRunner | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_runner": None}

    @torch.no_grad()
    def run(self, content: ShardBatches, tick: Tick) -> State:
        with self.model_ref.running() as model, ExitStack() as hooks:
            self._runner = self._runner or AllInputsRunner(
                StudiedModel(model, self.sites), DIAGNOSTICS[self.name]()
            )
            runner = self._runner.fresh()
            diagnostic = runner.diagnostics[self.name]
            kept = _ValueKeeper(diagnostic)
            if self.keep:
                diagnostic.update = kept  # type: ignore[method-assign]
            hooks.enter_context(runner.attached())
            if diagnostic.sees == "layers":
                names = attention_kinds(self.sites)
                hooks.enter_context(
                    capture_layers(model.backbone, names, runner.layer, calls=runner.call)
                )
            else:
                hooks.enter_context(capture(model.backbone, runner.call))
            forward, done = forward_of(model), 0
            for given in content.batches:
                batch = to_device(given, model.device)
                runner.shown(batch, content.first + done)
                forward(batch)
                done += len(next(iter(batch.values())))
                tick(done)
        return kept.values if self.keep else diagnostic.state()

    def merge(self, mine: State, theirs: State) -> State:
        if self.keep:
            return join_values(mine, theirs)
        one, other = (DIAGNOSTICS[self.name].from_state(state) for state in (mine, theirs))
        one.merge(other)
        return one.state()


class DiagnosticPass:
    """The diagnostic `name` over batches of inputs of a model.

    An `EigenlensError` if it does not apply to that model.
    """

    def __init__(self, model: nn.Module | Model, name: str, batches: Sequence[Batch]) -> None:
        loaded = load(model, device=None)
        self.studied = find_sites(
            loaded, lambda: forward_of(loaded)({key: x[:1] for key, x in batches[0].items()})
        )
        self.batches = batches
        self._runner = AllInputsRunner(self.studied, DIAGNOSTICS[name]())
        self.diagnostic = self._runner.diagnostics[name]

    def run(self) -> Diagnostic:
        """The diagnostic after all batches."""
        self.diagnostic.merge(type(self.diagnostic).from_state(self._fold(keep=False)))
        return self.diagnostic

    def values_per_input(self) -> dict[Site, Tensor]:
        """Every value that the diagnostic measures, (N, numbers, H) by site."""
        return {Site.parse(name): x for name, x in self._fold(keep=True).items()}

    def _fold(self, keep: bool) -> State:
        """The state over all batches.

        A model that a paper trained exists in this process alone, so its passes run here.
        """
        model_ref = ModelRef.of(self.studied.model, self.studied.model.device.type)
        shards, first = [], 0
        for batch in self.batches:
            size = len(next(iter(batch.values())))
            shards.append(Shard(first, size, (), partial(ShardBatches, first, (batch,))))
            first += size
        with use_engine(Local() if model_ref.place is None else choose_engine()) as engine:
            job = DiagnosticJob(
                model_ref,
                engine.threads,
                self.studied.sites,
                self.diagnostic.name,
                keep,
                self._runner,
            )
            merged = run_all(engine, job, shards)
        if merged.failed:  # a claim is about all inputs
            raise EigenlensError(
                describe_failures(
                    f"{self.diagnostic.name} of {self.studied.model.name}", merged.failed
                )
            )
        return merged.state
