"""The singular components of one input's scores, in every head of a loaded model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ...captures import AttentionCall, Site, SiteInfo, capture
from ...display import percent
from ...models.forward import forward_of
from ...models.load import Model, load
from ...spectra.within import IN_WORDS, Within, WithinKind, WithinSpectrum, within_spectra
from ...stats import WithinSpectra
from ...stats.within import SHARES
from ...studies.weight_spectra import weight_spectra
from ..inputs import make_batches
from .inputs import KINDS, Kind, controlled

BATCH = 8
MEASURED: tuple[WithinKind, ...] = ("scores", "centred", "pattern")
NEVER = 2**31
"""More inputs than there are."""


def model_rows(name: str, text: str, length: int, inputs: int, seed: int) -> dict[str, Any]:
    """Medians over the heads for each kind of input, every head, and weights that cannot be read.

    A picture's length is that of the model.
    """
    model = load(name)
    looks = model.kind == "vision"
    batches = make_batches(
        model, "photos" if looks else text, None if looks else length, inputs, seed, BATCH
    )
    sites: dict[Site, SiteInfo] = {}
    spectra: list[dict[str, Any]] = []
    heads: list[dict[str, Any]] = []
    for kind in KINDS:
        found = within_inputs(model, batches, kind, seed, sites)
        for what in MEASURED:
            some = list(found.whole(what))
            if some:
                spectra.append(medians(name, kind, what, some))
        if kind == "real":
            heads = [_head(name, one, "centred") for one in found.whole("centred")]
    state, why = weight_spectra(model, sites)
    weights = list(within_spectra(WithinSpectra.from_state(state).result()))
    if weights:
        spectra.append(medians(name, "none", "weights", weights))
        heads += [_head(name, one, "weights") for one in weights]
    return {"spectra": spectra, "heads": heads, "no weights": f"{name}: {why}" if why else ""}


def growth_rows(
    name: str, text: str, longest: int, inputs: int, kind: Kind, seed: int
) -> list[dict[str, Any]]:
    """Medians over the heads on the first 32, 64, 128, … tokens of long inputs."""
    model = load(name)
    batches = make_batches(model, text, longest, inputs, seed, 1)[:inputs]
    found = within_inputs(model, batches, kind, seed, {}, growth=True)
    return [
        medians(name, kind, "centred", list(found.select(what="centred", tokens=tokens)))
        for tokens in found.lengths
    ]


@torch.no_grad()
def within_inputs(
    model: Model,
    batches: Sequence[dict[str, Any]],
    kind: Kind,
    seed: int,
    sites: dict[Site, SiteInfo],
    growth: bool = False,
) -> Within:
    """The spectra of every input of these batches; the sites that were called go into `sites`.

    With `growth` those of its first tokens, and else those of its pattern.
    """
    statistic = WithinSpectra(1, *((1, NEVER) if growth else (NEVER, 1)))
    generator = torch.Generator().manual_seed(seed)

    def see(call: AttentionCall) -> None:
        statistic.update(call, 1)  # from 1 on, no input is a multiple of NEVER
        if call.site not in sites:
            sites[call.site] = SiteInfo.of_call(call)

    forward = forward_of(model)
    with capture(model.backbone, see):
        for batch in batches:
            forward(controlled(model, batch, kind, generator))
    return within_spectra(statistic.result())


def medians(
    model: str, inputs: str, what: WithinKind, heads: Sequence[WithinSpectrum]
) -> dict[str, Any]:
    """The median head at each share; the 10 and 90 % of heads at 90 %; all as one row."""
    at_90 = [one.dimension(0.9) for one in heads]
    return {
        "model": model,
        "inputs": inputs,
        "of": IN_WORDS[what],
        "tokens": max(one.tokens for one in heads),
        "heads": len(heads),
        "number": max(one.inputs for one in heads),
        "d": max(len(one.curve) for one in heads),
        **dict(_at_shares(heads)),
        "low": float(np.quantile(at_90, 0.1)),
        "high": float(np.quantile(at_90, 0.9)),
        "least": min(at_90),
        "most": max(at_90),
    }


def _at_shares(heads: Sequence[WithinSpectrum]) -> Iterator[tuple[str, float]]:
    for share in SHARES:
        yield percent(share), float(np.median([one.dimension(share) for one in heads]))


def _head(model: str, one: WithinSpectrum, what: WithinKind) -> dict[str, Any]:
    row = {"model": model, "stack": one.stack, "layer": one.layer, "head": one.head}
    return {**row, "of": IN_WORDS[what], "d": len(one.curve), "90 %": one.dimension(0.9)}
