"""Diagnostics on the inputs of a paper: every call or block of a forward pass is shown to them, as in a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..capture import AttentionCall, Layer, capture, capture_layers
from ..diagnostics import Diagnostic, Seen, SeenLayer, Subject
from ..errors import EigenlensError
from ..sources.models import Model


def subject_of(model: Model, run: Callable[[], Any]) -> Subject:
    """The model and the sites that attend in it during `run`, one forward pass."""
    sites: dict[str, dict[str, Any]] = {}

    def note(call: AttentionCall) -> None:
        sites[str(call.site)] = {
            "kind": call.kind, "name": call.name, "heads": call.heads, "kv_heads": call.k.shape[1],
        }  # fmt: skip

    with torch.no_grad(), capture(model.backbone, note):
        run()
    return Subject(model, sites)


def begun(diagnostic: Diagnostic, subject: Subject) -> None:
    """Get the diagnostic ready; an `EigenlensError` where it does not apply."""
    if why := diagnostic.begin(subject):
        raise EigenlensError(f"{subject.model.name}: {why}")


@contextmanager
def watched(subject: Subject, diagnostic: Diagnostic, see: Callable[[Any], Any] | None = None) -> Iterator[None]:
    """While this runs, the model's calls or blocks are shown to the diagnostic, or to `see` in place of its `update`."""
    show, within = see or diagnostic.update, diagnostic.sees == "layers"
    seen: dict[str, Seen] = {}  # of the block that runs

    def on_call(call: AttentionCall) -> None:
        if within:
            seen[str(call.site)] = Seen(call)
        else:
            show(Seen(call))

    def on_layer(layer: Layer) -> None:
        show(SeenLayer.of(layer, slice(None), None, seen.get(str(layer.site)), None))
        seen.clear()

    with torch.no_grad(), ExitStack() as doors:
        doors.enter_context(diagnostic.attached(subject))
        if within:
            names: dict[str, Any] = {site["name"]: site["kind"] for site in subject.sites.values()}
            doors.enter_context(capture_layers(subject.module, names, on_layer, calls=on_call))
        else:
            doors.enter_context(capture(subject.module, on_call))
        yield
