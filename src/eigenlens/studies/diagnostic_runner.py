"""Running the diagnostics of a study during its forward passes."""

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
"""One in this many of the inputs that diagnostics see is shown to their expensive parts."""


class DiagnosticRunner:
    """The diagnostics of a study, ready for its model; they see every `every`-th input.

    Around a pass over inputs of the study:

        with runner.attached():             # diagnostics put their own hooks into the model
            runner.shown(batch, place)      # which batch comes, and where it is among all inputs
            forward(batch)                  # capture gives each attention call to `runner.call`,
                                            # and each block, behind its calls, to `runner.layer`

    A diagnostic that does not apply to the model is left out, and `notes` says why. Those that need
    inputs of their own get them from `probe`, after all inputs of the study.
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
        """Make the diagnostics named in `settings`, from their states if a run goes on.

        `blocks` says whether the model shows its blocks.
        """
        states = states or {}
        made = {
            name: DIAGNOSTICS[name].from_state(states.get(name, {}), **given)
            for name, given in settings.items()
        }
        return cls(studied, made, every, blocks)

    def fresh(self) -> DiagnosticRunner:
        """An empty copy for one shard, of the diagnostics that see inputs of the study.

        The copies share what they know of the model.
        """
        made = copy.copy(self)
        made.diagnostics = {
            d.name: d.fresh() for d in self.that_see("calls") + self.that_see("layers")
        }
        made._seen = {}
        return made

    def that_see(self, what: str) -> list[Diagnostic]:
        """The diagnostics of one kind: those that see `calls`, `layers` or a `probe`."""
        return [diagnostic for diagnostic in self.diagnostics.values() if diagnostic.sees == what]

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Let diagnostics put their own hooks into the model, for passes over the inputs."""
        with ExitStack() as stack:
            for diagnostic in self.that_see("calls") + self.that_see("layers"):
                stack.enter_context(diagnostic.attached(self.studied))
            yield

    def shown(self, batch: Batch, place: int) -> None:
        """Announce a pass over this batch, whose first input has the index `place`."""
        self._batch, self._place = batch, place
        self._seen.clear()

    def call(self, call: AttentionCall) -> None:
        """Show an attention call to the diagnostics that see calls.

        For those that see layers it is kept until its block ends.
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
        """Show a block that has ended, with its self-attention, to those that see layers."""
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
        """Run inputs of their own for the diagnostics that need them, after all passes."""
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
        """The states of all diagnostics, each under `diagnostic NAME`."""
        return {
            f"diagnostic {name}:{key}": x
            for name, diagnostic in self.diagnostics.items()
            for key, x in diagnostic.state().items()
        }

    def take(self, state: State, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Add what another shard has shown.

        `state` is as `state()` gives it, of diagnostics with the same settings.
        """
        for name, theirs in diagnostics_of(state, settings).items():
            if name in self.diagnostics:
                self.diagnostics[name].merge(theirs)

    def _chosen(self, size: int) -> slice | None:
        """The indices of the inputs of a batch that are shown, or None."""
        first = -self._place % self.every
        return None if first >= size or not self.diagnostics else slice(first, None, self.every)

    def _sampled(self, size: int) -> list[int]:
        """Which of the chosen inputs of a batch the expensive parts see."""
        first = -self._place % self.every
        shown = range(self._place + first, self._place + size, self.every)
        return [i for i, place in enumerate(shown) if place // self.every % EXPENSIVE_EVERY == 0]

    def _ids(self, kind: str, stack: str, keys: Tensor, chosen: slice) -> Tensor | None:
        """The token ids of the keys (B, …, S, D), or None if the batch has none."""
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
    """The diagnostics by name, from a state that has each under `diagnostic NAME`."""
    parts = unpack_states(state, [f"diagnostic {name}" for name in settings])
    return {
        name: DIAGNOSTICS[name].from_state(parts[f"diagnostic {name}"], **given)
        for name, given in settings.items()
    }
