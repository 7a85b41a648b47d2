"""A diagnostic on the inputs of a paper: as in a study, but every input in full, on the engine in
force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..captures import AttentionCall, SiteInfo, attention_kinds, capture, capture_layers
from ..diagnostics import DIAGNOSTICS, Diagnostic, StudiedModel
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..models.load import Model, load
from ..passes.model_ref import ModelRef
from ..passes.shards import ShardBatches, there
from ..run.engine import Local, choose, use_engine
from ..run.run_all import folded, lost
from ..run.shards import Shard, Tick
from ..stats import State
from ..studies.diagnostic_runner import DiagnosticRunner

Batch = Mapping[str, Tensor]


def subject_of(model: Model, run: Callable[[], Any]) -> StudiedModel:
    """The model and the sites that attend in it during `run`, one forward pass."""
    sites: dict[str, SiteInfo] = {}

    def note(call: AttentionCall) -> None:
        sites[str(call.site)] = SiteInfo.of_call(call)

    with torch.no_grad(), capture(model.backbone, note):
        run()
    return StudiedModel(model, sites)


def begin(diagnostic: Diagnostic, studied: StudiedModel) -> None:
    """Get the diagnostic ready; an `EigenlensError` where it does not apply."""
    if why := diagnostic.begin(studied):
        raise EigenlensError(f"{studied.model.name}: {why}")


class Everything(DiagnosticRunner):
    """One diagnostic that sees every input, its expensive parts too; an `EigenlensError` where it
    does not apply.
    """

    def __init__(self, studied: StudiedModel, diagnostic: Diagnostic) -> None:
        super().__init__(studied, {}, 1)
        begin(diagnostic, studied)
        self.diagnostics = {diagnostic.name: diagnostic}

    def _sampled(self, size: int) -> list[int]:
        return list(range(size))


class _Kept:
    """In place of a diagnostic's `update`: the values (B, numbers, H) that it measures at each
    site.
    """

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        self.values: dict[str, Tensor] = {}

    def __call__(self, seen: Any) -> None:
        values = self.diagnostic.measure(seen)
        if values is not None:
            self.values = joined(self.values, {seen.site: values.cpu()})


def joined(mine: State, theirs: State) -> State:
    """Values (N, …) by site, those of more inputs behind."""
    return {
        **mine,
        **{site: torch.cat([mine[site], x]) if site in mine else x for site, x in theirs.items()},
    }


@dataclass
class Watch:
    """A pass that is shown to the diagnostic `name`; the state is its own, or with `keep` all it
    measures, by site.
    """

    model_ref: ModelRef
    threads: int
    sites: Mapping[str, SiteInfo]
    name: str
    keep: bool
    _own: Everything | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_own": None}

    @torch.no_grad()
    def run(self, content: ShardBatches, tick: Tick) -> State:
        with self.model_ref.running() as model, ExitStack() as hooks:
            self._own = self._own or Everything(
                StudiedModel(model, self.sites), DIAGNOSTICS[self.name]()
            )
            own = self._own.fresh()
            diagnostic = own.diagnostics[self.name]
            kept = _Kept(diagnostic)
            if self.keep:
                diagnostic.update = kept  # type: ignore[method-assign]
            hooks.enter_context(own.attached())
            if diagnostic.sees == "layers":
                names = attention_kinds(self.sites)
                hooks.enter_context(
                    capture_layers(model.backbone, names, own.layer, calls=own.call)
                )
            else:
                hooks.enter_context(capture(model.backbone, own.call))
            forward, done = forward_of(model), 0
            for given in content.batches:
                batch = there(given, model)
                own.shown(batch, content.first + done)
                forward(batch)
                done += len(next(iter(batch.values())))
                tick(done)
        return kept.values if self.keep else diagnostic.state()

    def merge(self, mine: State, theirs: State) -> State:
        if self.keep:
            return joined(mine, theirs)
        one, other = (DIAGNOSTICS[self.name].from_state(state) for state in (mine, theirs))
        one.merge(other)
        return one.state()


class Diagnosed:
    """A diagnostic, by its name, and a model that it applies to; an `EigenlensError` of one that it
    does not.
    """

    def __init__(self, model: nn.Module | Model, name: str, batches: Sequence[Batch]) -> None:
        loaded = load(model, device=None)
        self.studied = subject_of(
            loaded, lambda: forward_of(loaded)({key: x[:1] for key, x in batches[0].items()})
        )
        self.batches = batches
        self._own = Everything(self.studied, DIAGNOSTICS[name]())
        self.diagnostic = self._own.diagnostics[name]

    def seen(self) -> Diagnostic:
        """The diagnostic after it has seen all batches."""
        self.diagnostic.merge(type(self.diagnostic).from_state(self._fold(keep=False)))
        return self.diagnostic

    def values(self) -> dict[str, Tensor]:
        """All that it measures, (N, numbers, H) by site."""
        return self._fold(keep=True)

    def _fold(self, keep: bool) -> State:
        """What a paper trained is in this process alone, and so are its passes."""
        model_ref = ModelRef.of(self.studied.model, self.studied.model.device.type)
        shards, first = [], 0
        for batch in self.batches:
            size = len(next(iter(batch.values())))
            shards.append(Shard(first, size, (), partial(ShardBatches, first, (batch,))))
            first += size
        with use_engine(Local() if model_ref.place is None else choose()) as engine:
            job = Watch(
                model_ref, engine.threads, self.studied.sites, self.diagnostic.name, keep, self._own
            )
            whole = folded(engine, job, shards)
        if whole.failed:  # a claim is about all inputs
            raise EigenlensError(
                lost(f"{self.diagnostic.name} of {self.studied.model.name}", whole.failed)
            )
        return whole.state
