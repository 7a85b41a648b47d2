"""Head relevance of models: of any that is loaded, through its captured calls, and of the lab's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.relevance import evenness, head_relevance, over_tokens, relevance_map
from ...capture import AttentionCall, capture
from ...errors import EigenlensError
from ...explain import anatomy, head_weights
from ...explain.anatomy import Attend
from ...lab import Transformer
from ...sources.models import load
from ..inputs import batches_of


@torch.no_grad()
def loaded_relevance(model: nn.Module, passes: Sequence[Callable[[], Any]]) -> dict[str, Tensor]:
    """The relevance (layers, H) of every stack of self-attention: medians over tokens, then over the inputs of all passes.

    z of a head is its pattern times its values, W_O its rows of the output projection, whichever way the family stores it.
    """
    ways = [branch.linear for stack in anatomy(model) for block in stack.blocks for stage in block.stages
            for branch in stage.branches if branch.kind == "attention"]  # fmt: skip
    outputs = {id(way.module): way.output for way in ways if isinstance(way, Attend)}
    found: dict[str, dict[int, list[Tensor]]] = {}

    def note(call: AttentionCall) -> None:
        module = model.get_submodule(call.name)
        if call.kind != "self":
            return
        if id(module) not in outputs:
            raise EigenlensError(f"{call.name} attends, and where its output goes is not known; its heads cannot be weighed")
        w_o = head_weights(module, call.heads, call.k.shape[1], outputs[id(module)]).output  # (H, E, C)
        c = head_relevance(call.pattern() @ call.values, w_o)  # (B, H, T)
        found.setdefault(call.site.stack, {}).setdefault(call.layer, []).append(over_tokens(c, call.query_valid))

    for run in passes:
        with capture(model, note):
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
    for stack, relevance in loaded_relevance(backbone, passes).items():
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
