"""A forward pass shown to the diagnostics of a study."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from ..captures import AttentionCall, Layer, capture
from ..diagnostics import DIAGNOSTICS, CallView, Diagnostic, LayerView, StudiedModel
from ..run.checkpoints import unpack_states
from ..stats import State

Batch = Mapping[str, Tensor]
EXPENSIVE_EVERY = 2
"""Of the inputs that diagnostics see, one in so many is shown to their expensive parts."""


class DiagnosticRunner:
    """The diagnostics of a study, ready for its model; every `every`-th input is shown to them.

    Around a pass over inputs of the study:

        with runner.attached():             # diagnostics put their own hooks into the model
            runner.shown(batch, place)      # which batch comes, and where it is among all inputs
            forward(batch)                  # capture gives each attention call to `runner.call`,
                                            # and each block, behind its calls, to `runner.layer`

    A diagnostic that does not apply to the model is left out, and `notes` says why. Those that ask
    for inputs of their own get them from `probe`, when the inputs of the study are over.
    """

    def __init__(
        self,
        studied: StudiedModel,
        diagnostics: Mapping[str, Diagnostic],
        every: int,
        blocks: bool = True,
    ) -> None:
        self.studied, self.every = studied, every
        self.notes: dict[str, str] = {}
        for name, diagnostic in diagnostics.items():
            if why := diagnostic.begin(studied):
                self.notes[name] = why
            if diagnostic.sees == "layers" and not blocks:
                self.notes[name] = (
                    f"{studied.model.name} has no numbered blocks around its attention"
                )
        self.diagnostics = {
            name: diagnostic for name, diagnostic in diagnostics.items() if name not in self.notes
        }
        self._batch: Batch = {}
        self._place = 0  # of the batch's first input among all inputs
        self._seen: dict[str, CallView] = {}  # of the block that runs, by the path of the attention

    @classmethod
    def of(
        cls,
        studied: StudiedModel,
        settings: Mapping[str, Mapping[str, Any]],
        every: int,
        states: Mapping[str, State] | None = None,
        blocks: bool = True,
    ) -> DiagnosticRunner:
        """The diagnostics named in `settings`, from their states where a run goes on.

        `blocks` says if any can be seen.
        """
        states = states or {}
        made = {
            name: DIAGNOSTICS[name].from_state(states.get(name, {}), **given)
            for name, given in settings.items()
        }
        return cls(studied, made, every, blocks)

    def fresh(self) -> DiagnosticRunner:
        """For one shard: a copy with nothing seen, of those that see inputs of the study.

        What they know of the model is shared.
        """
        made = copy.copy(self)
        made.diagnostics = {
            d.name: d.fresh() for d in self.that_see("calls") + self.that_see("layers")
        }
        made._seen = {}
        return made

    def that_see(self, what: str) -> list[Diagnostic]:
        """Those that see `calls`, `layers` or a `probe` of their own."""
        return [diagnostic for diagnostic in self.diagnostics.values() if diagnostic.sees == what]

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Around passes over the study's inputs: diagnostics put their own hooks into the model."""
        with ExitStack() as stack:
            for diagnostic in self.that_see("calls") + self.that_see("layers"):
                stack.enter_context(diagnostic.attached(self.studied))
            yield

    def shown(self, batch: Batch, place: int) -> None:
        """Before each pass: it is over this batch, whose first input is at `place` of all."""
        self._batch, self._place = batch, place
        self._seen.clear()

    def call(self, call: AttentionCall) -> None:
        """During the pass: an attention call.

        It goes to those that see calls, and is kept until its block ends for those that see layers.
        """
        chosen = self._chosen(len(call.q))
        if chosen is None:
            return
        ids = self._ids(call.kind, call.site.stack, call.k, chosen)
        seen = CallView(
            call.of_inputs(chosen), ids, self.studied.vocabulary, self._sampled(len(call.q))
        )
        if self.that_see("layers"):
            self._seen[call.name] = seen
        for diagnostic in self.that_see("calls"):
            diagnostic.update(seen)

    def layer(self, layer: Layer) -> None:
        """During the pass: a block that has ended, with its self-attention."""
        chosen = self._chosen(len(layer.inputs))
        watching = self.that_see("layers")
        if chosen is not None and watching:
            own = next(
                (self._seen.get(call.name) for call in layer.calls if call.kind == "self"), None
            )
            ids = self._ids("self", layer.site.stack, layer.inputs[:, None], chosen)
            shown = LayerView.of(
                layer, chosen, ids, own, self.studied.vocabulary, self._sampled(len(layer.inputs))
            )
            for diagnostic in watching:
                diagnostic.update(shown)
        self._seen.clear()

    def probe(self, forward: Callable[[Batch], Any], progress: Callable[[int, int], None]) -> None:
        """After all passes: full inputs of their own for the diagnostics that ask for them."""
        probing = self.that_see("probe")
        for number, diagnostic in enumerate(probing):
            progress(number, len(probing))
            for batch in diagnostic.batches(self.studied.model):
                self.shown(batch, 0)

                def show(call: AttentionCall, to: Diagnostic = diagnostic) -> None:
                    everything = slice(None)
                    ids = self._ids(call.kind, call.site.stack, call.k, everything)
                    to.update(CallView(call.of_inputs(everything), ids, self.studied.vocabulary))

                with torch.no_grad(), capture(self.studied.module, show):
                    forward(batch)

    def state(self) -> State:
        """The states of all, each under `diagnostic NAME`."""
        return {
            f"diagnostic {name}:{key}": x
            for name, diagnostic in self.diagnostics.items()
            for key, x in diagnostic.state().items()
        }

    def take(self, state: State, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Add what other shards have shown.

        A state as `state` gives it, of diagnostics with these settings.
        """
        for name, theirs in diagnostics_of(state, settings).items():
            if name in self.diagnostics:
                self.diagnostics[name].merge(theirs)

    def _chosen(self, size: int) -> slice | None:
        """The inputs of a batch of this size that are shown, or None."""
        first = -self._place % self.every
        return None if first >= size or not self.diagnostics else slice(first, None, self.every)

    def _sampled(self, size: int) -> list[int]:
        """Which of a batch's chosen inputs the expensive parts see, by place among all inputs."""
        first = -self._place % self.every
        shown = range(self._place + first, self._place + size, self.every)
        return [i for i, place in enumerate(shown) if place // self.every % EXPENSIVE_EVERY == 0]

    def _ids(self, kind: str, stack: str, keys: Tensor, chosen: slice) -> Tensor | None:
        """The token ids of the keys (B, …, S, D), where the batch has them."""
        decoding = (
            kind == "self" and stack.startswith("decoder") and "decoder_input_ids" in self._batch
        )
        ids = self._batch.get("decoder_input_ids" if decoding else "input_ids")
        if ids is None or ids.shape != (keys.shape[0], keys.shape[-2]):
            return None
        return ids[chosen]


def diagnostics_of(
    state: State, settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Diagnostic]:
    """By name, from a state that has each under `diagnostic NAME`."""
    parts = unpack_states(state, [f"diagnostic {name}" for name in settings])
    return {
        name: DIAGNOSTICS[name].from_state(parts[f"diagnostic {name}"], **given)
        for name, given in settings.items()
    }
