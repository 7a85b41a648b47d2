"""Head relevance of models: of any that is loaded, through its captured calls, and of the lab's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.relevance import evenness, head_relevance, relevance_map
from ...diagnostics import Seen
from ...diagnostics.relevance import Relevance
from ...errors import EigenlensError
from ...lab import Transformer
from ...sources.models import Model, load
from ..diagnosed import begun, subject_of, watched
from ..inputs import batches_of


def loaded_relevance(model: nn.Module | Model, passes: Sequence[Callable[[], Any]]) -> dict[str, Tensor]:
    """The relevance (layers, H) of every stack of self-attention: medians over tokens, then over the inputs of all passes.

    The diagnostic's own result is right to a thousandth, and in a study of some inputs only; here it is of all, and exact.
    """
    subject = subject_of(load(model, device=None), passes[0])
    relevance = Relevance()
    begun(relevance, subject)
    found: dict[str, dict[int, list[Tensor]]] = {}

    def note(seen: Seen) -> None:
        call = seen.call
        if call.kind != "self":
            return
        values = relevance.measure(seen)  # (B, 1, H)
        if values is None:
            raise EigenlensError(f"{call.name} attends, and where its output goes is not known; its heads cannot be weighed")
        found.setdefault(call.site.stack, {}).setdefault(call.layer, []).append(values[:, 0])

    for run in passes:
        with watched(subject, relevance, note):
            run()
    return {
        stack: torch.stack([torch.cat(layers[layer]).nanquantile(0.5, dim=0) for layer in sorted(layers)])
        for stack, layers in found.items()
    }  # fmt: skip


def catalogue_map(name: str, text: str, length: int, number: int, seed: int) -> list[dict[str, Any]]:
    """The map of a catalogue model on real text, a row for each head, with the evenness of its layer."""
    model = load(name)
    backbone: Any = model.backbone
    passes = [lambda batch=batch: backbone(**batch) for batch in batches_of(model, text, length, number, seed)]
    rows = []
    for stack, relevance in loaded_relevance(model, passes).items():
        for layer, (shares, even) in enumerate(zip(relevance.tolist(), evenness(relevance).tolist())):
            rows += [
                {"model": name, "stack": stack, "layer": layer, "head": head, "relevance": share, "evenness": even}
                for head, share in enumerate(shares)
            ]
    return rows


@torch.no_grad()
def lab_relevance(model: Transformer, inputs: Tensor) -> Tensor:
    """The map (layers, H) of a lab model on inputs without padding."""
    zs = model.head_outputs(inputs)
    return relevance_map([head_relevance(z, attention.w_o) for z, attention in zip(zs, model.attentions)])
