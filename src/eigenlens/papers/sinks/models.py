"""Sinks, massive activations and amplifiers of loaded decoders.

They are measured on texts, and on tokens that stand first.
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ...captures import Layer, attention_kinds, capture_layers
from ...diagnostics import StudiedModel
from ...diagnostics.amplifier import Amplifier
from ...diagnostics.sinks import Sinks
from ...diagnostics.spikes import Spikes
from ...errors import EigenlensError
from ...models.forward import forward_of
from ...models.load import load
from ...stats.intervals import t_interval
from ...studies.diagnostic_runner import DiagnosticRunner
from ..diagnostic_pass import find_sites
from ..inputs import token_ids
from .rank_one import rank_one_shares
from .windows import window_rows

BATCH = 8
EPSILONS = (0.1, 0.2, 0.3, 0.5)
"""Attention from which a key is a sink: the paper's .3, and around it."""


def model_rows(
    name: str,
    text: str,
    length: int,
    inputs: int,
    window: int,
    long: int,
    few: int,
    tokens: int,
    seed: int,
) -> dict[str, Any]:
    """Everything that is measured of one decoder, as tables."""
    model = load(name)
    ids = token_ids(model, text, length, inputs, seed)
    studied = find_sites(model, lambda: model.backbone(input_ids=ids[:1], use_cache=False))
    if model.kind != "decoder":
        raise EigenlensError(
            f"{name} is no decoder; sinks at the first token are measured in decoders only"
        )
    sinks, spikes, rates = on_texts(studied, ids)
    amplifier = Amplifier()
    why = amplifier.begin(studied)
    layers = layer_rows(name, sinks, spikes, None if why else amplifier)
    if not why:
        tops = {row["layer"]: row["amplified channel"] for row in layers if row["steps"]}
        shares = rank_one_shares(studied, tops)
        layers = [{**row, "rank-one share": shares.get(row["layer"])} for row in layers]
    medians = torch.tensor([row["median"] for row in layers])
    return {
        "layers": layers,
        "heads": [{"model": name, **row} for row in sinks.result().rows()],
        "summary": {
            **summary(name, ids, sinks, spikes, rates),
            "parameters": model.facts.parameters,
        },
        "places": [{"model": name, **row} for row in place_rows(studied, ids)],
        "first": {"model": name, **first_tokens(studied, ids, medians, tokens, seed, spikes)},
        "window": window_rows(model, text, long, few, window, seed),
    }


def on_texts(studied: StudiedModel, ids: Tensor) -> tuple[Sinks, Spikes, list[float]]:
    """The diagnostics over all inputs (N, T), and the sink rate of each input.

    That is the share of its heads with α₁ > ε.
    """
    sinks, spikes, rates = Sinks(), Spikes(), []
    for one in ids[:, None]:
        parts = DiagnosticRunner(studied, {"sinks": Sinks(), "spikes": Spikes()}, 1)
        _run(studied, parts, one)
        found = parts.diagnostics["sinks"].result().values("rate")
        rates.append(mean(found.values()))
        sinks.merge(parts.diagnostics["sinks"])  # type: ignore[arg-type]
        spikes.merge(parts.diagnostics["spikes"])  # type: ignore[arg-type]
    return sinks, spikes, rates


def _run(studied: StudiedModel, parts: DiagnosticRunner, ids: Tensor) -> None:
    """A forward pass over ids (B, T), shown to the diagnostics."""
    names = attention_kinds(studied.sites)
    with torch.no_grad(), ExitStack() as hooks:
        hooks.enter_context(parts.attached())
        hooks.enter_context(capture_layers(studied.module, names, parts.layer, calls=parts.call))
        parts.shown({"input_ids": ids}, 0)
        forward_of(studied.model)({"input_ids": ids})


def place_rows(studied: StudiedModel, ids: Tensor) -> list[dict[str, Any]]:
    """How many of the sinks of texts (N, T) are the first token, at several ε."""
    made = {str(epsilon): Sinks(epsilon=epsilon) for epsilon in EPSILONS}
    runner = DiagnosticRunner(studied, made, 1, blocks=False)
    for one in ids[:, None]:
        _run(studied, runner, one)
    rows = []
    for epsilon, sinks in made.items():
        (row,) = sinks.result().tables["Where the sinks are, over heads and inputs"]
        front = row["at the first token"]
        rows.append({"ε": float(epsilon), "sinks": row["sinks"], "at the first token": front})
    return rows


def layer_rows(
    name: str, sinks: Sinks, spikes: Spikes, amplifier: Amplifier | None
) -> list[dict[str, Any]]:
    """One row per layer.

    It has the magnitudes behind the layer, its sinks, its amplifier, and the channels that lead in
    both.
    """
    finding, strength = spikes.result(), sinks.result().layers()
    gains = (
        {row["layer"]: row for row in amplifier.result().rows()} if amplifier is not None else {}
    )
    tops: dict[int, dict[str, Any]] = {}
    for row in amplifier.top() if amplifier is not None else ():
        tops.setdefault(row["layer"], row)
    steps = {row["layer"]: row["steps"] for row in spikes.steps(finding)}
    rows = []
    for row, sink in zip(finding.rows(), strength, strict=True):
        layer = row["layer"]
        counts = spikes.sums[f"{row['stack']}/{layer}/channels"]  # (2, C)
        gain, top = gains.get(layer), tops.get(layer)
        rows.append(
            {
                "model": name,
                "layer": layer,
                **{key: row[key] for key in spikes.numbers},
                "steps": steps.get(layer, ""),
                "sink rate": sink["rate"],
                "sink strength": sink["strength"],
                "largest channel": int(counts[0].argmax()),
                "amplified channel": top and top["channel"],
                "λ₁": top and top["λ₁"],
                "λ₂": top and top["λ₂"],
                "rank-one share": None,
                "dominance": gain and gain["dominance"],
                "concentration": gain and gain["concentration"],
                "shared": gain and gain["shared"],
                "channels": counts.shape[1],
            }
        )
    return rows


def summary(
    name: str, ids: Tensor, sinks: Sinks, spikes: Spikes, rates: list[float]
) -> dict[str, Any]:
    """The model in one row."""
    found, magnitudes = sinks.result(), spikes.result()
    rate, low, high = t_interval(rates)
    places = found.tables["Where the sinks are, over heads and inputs"][0]
    largest = magnitudes.values("largest")
    top = max(largest, key=lambda place: largest[place])
    steps = spikes.steps(magnitudes)
    return {
        "model": name,
        "inputs": len(ids),
        "tokens": ids.shape[1],
        "layers": len(largest),
        "sink rate": rate,
        "low": low,
        "high": high,
        "sink strength": mean(found.values("strength").values()),
        "anywhere": mean(found.values("anywhere").values()),
        "sinks at the first token": places["at the first token"],
        "spike": largest[top],
        "spike over median": magnitudes.values("ratio")[top],
        "inputs with spikes": max(magnitudes.values("massive").values()),
        "spikes at the first token": magnitudes.values("first")[top],
        "steps up": [row["layer"] for row in steps if row["steps"] == "up"],
        "steps down": [row["layer"] for row in steps if row["steps"] == "down"],
    }


def first_tokens(
    studied: StudiedModel, ids: Tensor, medians: Tensor, number: int, seed: int, spikes: Spikes
) -> dict[str, Any]:
    """How many tokens have a massive activation, at position 0 and elsewhere.

    At position 0 the tokens are a sample of the vocabulary, elsewhere those of a text.

    Nothing comes before the first token of a decoder, so each is run alone, and compared with
    the median of the same layer on texts (L,).
    """
    V = int(studied.model.config.vocab_size)
    sample = torch.randperm(V, generator=torch.Generator().manual_seed(seed))[:number]
    alone = torch.cat(
        [massive(studied, part[:, None], medians, spikes)[:, 0] for part in sample.split(256)]
    )
    # (N, T)
    texts = torch.cat([massive(studied, part, medians, spikes) for part in ids.split(BATCH)])
    return {
        "vocabulary": V,
        "sampled": len(sample),
        "spike at position 0": float(alone.double().mean()),
        "of texts, at position 0": float(texts[:, 0].double().mean()),
        "of texts, elsewhere": float(texts[:, 1:].double().mean()),
    }


def massive(studied: StudiedModel, ids: Tensor, medians: Tensor, spikes: Spikes) -> Tensor:
    """Which tokens of ids (B, T) have a massive activation behind some block, (B, T) bool."""
    names = attention_kinds(studied.sites)
    found = torch.zeros(ids.shape, dtype=torch.bool)

    def see(layer: Layer) -> None:
        size = layer.outputs.abs().amax(2).cpu()  # (B, T)
        bound = spikes.settings.ratio * float(medians[layer.site.layer])
        found.logical_or_((size > spikes.settings.size) & (size >= bound))

    with torch.no_grad(), capture_layers(studied.module, names, see):
        forward_of(studied.model)({"input_ids": ids})
    return found
