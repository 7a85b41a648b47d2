"""Head relevance of loaded models, through their captured calls, and of lab models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.relevance import evenness, head_relevance, relevance_map
from ...errors import EigenlensError
from ...lab import Transformer
from ...models.load import Model, load
from ..diagnostic_pass import Batch, DiagnosticPass
from ..inputs import make_batches


def loaded_relevance(model: nn.Module | Model, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """The relevance (layers, H) of every stack of self-attention.

    It is the median over tokens, then over all inputs.

    The diagnostic itself is exact to a thousandth, and a study measures it on some inputs; here it
    is exact, on all inputs.
    """
    diagnostic_pass = DiagnosticPass(model, "relevance", batches)
    values = diagnostic_pass.values_per_input()  # (N, 1, H)
    found: dict[str, dict[int, Tensor]] = {}
    for site, entry in diagnostic_pass.studied.sites.items():
        if entry.kind != "self":
            continue
        if site not in values:
            raise EigenlensError(
                f"the output projection of {entry.name} was not found, so the relevance of its"
                " heads cannot be measured"
            )
        medians = values[site][:, 0].nanquantile(0.5, dim=0)
        found.setdefault(site.stack, {})[site.layer] = medians
    return {
        stack: torch.stack([layers[layer] for layer in sorted(layers)])
        for stack, layers in found.items()
    }


def catalogue_map(
    name: str, text: str, length: int, number: int, seed: int
) -> list[dict[str, Any]]:
    """The map of a catalogue model on real text, a row for each head.

    Each row has the evenness of its layer beside it.
    """
    model = load(name)
    rows = []
    for stack, relevance in loaded_relevance(
        model, make_batches(model, text, length, number, seed)
    ).items():
        for layer, (shares, even) in enumerate(
            zip(relevance.tolist(), evenness(relevance).tolist())
        ):
            rows += [
                {
                    "model": name,
                    "stack": stack,
                    "layer": layer,
                    "head": head,
                    "relevance": share,
                    "evenness": even,
                }
                for head, share in enumerate(shares)
            ]
    return rows


@torch.no_grad()
def lab_relevance(model: Transformer, inputs: Tensor) -> Tensor:
    """The map (layers, H) of a lab model on inputs without padding."""
    zs = model.head_outputs(inputs)
    return relevance_map(
        [head_relevance(z, attention.w_o) for z, attention in zip(zs, model.attentions)]
    )
