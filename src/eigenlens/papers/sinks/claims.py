"""What was measured of sinks and spikes, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

from ...display import numbered, percent
from ..claims import Claim, Tables
from ..verdicts import judged, judged_along, judged_at, out_of_reach
from .amplifier_claims import amplifier_claims
from .exact_claims import exact_claims
from .training import EPSILON
from .window_claim import window_claim

Row = dict[str, Any]
PRE_NORM = 46.0
"""Published sink rate, in percent, of a pre-norm model of 7 billion parameters.

Other models are compared with it.
"""
REMEDIES = {
    "gate a channel (G1)": "per-channel conditional gate 4.5 %",
    "gate a head (G1)": "per-head gate 6.4 %",
    "head dimension 8": "head dimension 8: 4.1 %",
    "off-by-one": "softmax need not rest on a token",
}
LEAST_PARAMETERS = 1e8
"""From here on a decoder counts as one of the language models that the paper is about.

The bound is ours; the smallest general ones that are published have a little more.
"""
LANGUAGE_MODEL = "a general language model, of 100 million parameters or more"
BILLIONS = "a model of 7 billion parameters"


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    """Every claim: exact statements, then every model, then training."""
    models = [claim for row in tables["models"] for claim in _model(row, tables)]
    return (*exact_claims(tables), *models, *_training(tables), _far())


def _model(row: Row, tables: Tables) -> list[Claim]:
    name = row["model"]
    of = {
        table: [found for found in tables[table] if found["model"] == name]
        for table in ("layers", "places", "first tokens", "windows")
    }
    inputs = f"{row['inputs']} inputs of {row['tokens']} tokens"
    interval = None if row["low"] is None else (row["low"], row["high"])
    rate = out_of_reach(
        f"{name}: sink rate of a pre-norm decoder",
        f"{PRE_NORM:g} % of heads and inputs, 7B",
        BILLIONS,
        f"miniature: share of heads and inputs with α₁ > {EPSILON:g}, {inputs}; 95 % interval"
        f" of the mean over inputs; mean α₁ {row['sink strength']:.3f}, a sink at any token"
        f" {row['anywhere']:.3f}",
        measured=row["sink rate"],
        interval=interval,
    )
    spiking = row["inputs with spikes"] >= 0.5  # else no channel spikes
    of_language_models = (
        _massive(row, inputs),
        _steps(row),
        *(amplifier_claims(name, of["layers"]) if spiking else ()),
        _vocabulary(name, of["first tokens"][0]),
        window_claim(name, of["windows"]),
    )
    small = row["parameters"] < LEAST_PARAMETERS
    return [
        rate,
        _first(name, of["places"], inputs),
        *(_beyond(made, row) if small else made for made in of_language_models),
    ]


def _beyond(made: Claim, row: Row) -> Claim:
    """The same of a model that is too small to judge the claim, whatever was measured."""
    size = f"miniature of {row['parameters'] / 1e6:.0f} million parameters: {made.note}"
    return out_of_reach(
        made.claim,
        made.published,
        LANGUAGE_MODEL,
        size,
        measured=made.measured,
        interval=made.interval,
    )


def _first(name: str, rows: Sequence[Row], inputs: str) -> Claim:
    shares = {
        row["ε"]: math.nan if row["at the first token"] is None else row["at the first token"]
        for row in rows
    }
    curve = {f"ε = {epsilon:g}": share for epsilon, share in shares.items()}
    return judged_along(
        f"{name}: the sinks are the first token",
        "position 0; ε = .3",
        curve,
        f"ε = {EPSILON:g}",
        None,
        "holds where at least half of the sinks are the first token; the half is ours",
        f"share of all sinks of heads and inputs, {inputs}",
        at_least=0.5,
        reason=f"the claim: of the sinks at ε = {EPSILON:g} a share of {shares[EPSILON]:.3g} is at"
        " the first token",
    )


def _massive(row: Row, inputs: str) -> Claim:
    share = row["inputs with spikes"]
    size = f"{row['spike']:,.4g}, {row['spike over median']:,.0f} × the median"
    return judged_at(
        f"{row['model']}: there are massive activations",
        "3818 in size, 7B",
        share,
        {
            "half of the inputs": share >= 0.5,
            "90 % of them": share >= 0.9,
        },
        None,
        "holds where at least so many inputs have an activation above 100 and 1000 × the median",
        f"share of {inputs} that have one, at the layer with most; the largest mean magnitude is"
        f" {size}, in {percent(row['spikes at the first token'])} of inputs at the first token",
        reason=f"the claim: the largest mean magnitude is {size}",
    )


def _steps(row: Row) -> Claim:
    """The claim that activations step up early and down late."""
    up, down, L = row["steps up"], row["steps down"], row["layers"]
    parts = {"half": 2, "third": 3, "quarter": 4}
    points = {
        f"the first and the last {name}": bool(up and down)
        and (max(up) + 1) * part <= L
        and min(down) * part >= L * (part - 1)
        for name, part in parts.items()
    }
    ways = (
        f"{way} in {', '.join(f'L{layer}' for layer in at)}" if at else f"{way} nowhere"
        for way, at in (("up", up), ("down", down))
    )
    message = f"{', '.join(ways)} of {L}"
    return judged_at(
        f"{row['model']}: activations step up in an early block and down in a late one",
        "Llama-2-7B: up at 4, down at 62 of 64",
        max(up) / L if up else None,
        points,
        None,
        "holds where all steps up are in that part of the blocks, and all steps down, at least one,"
        " in the other",
        f"{message} (from 0), where the largest magnitude moves by half of the largest of all;"
        " measured: the last step up as a share of the depth",
        reason=f"the claim: activations step {message} blocks",
    )


def _vocabulary(name: str, first: Row) -> Claim:
    share = first["spike at position 0"]
    return judged(
        f"{name}: most of the vocabulary spikes at position 0",
        "98.4 – 99.9 %",
        share,
        _binomial(share, first["sampled"]),
        "reproduced if at least 98.4 %",
        f"share of {first['sampled']:,} ids of {first['vocabulary']:,}, each run alone, against"
        " the layers' medians on texts; interval: 95 % of a binomial; of texts"
        f" {percent(first['of texts, at position 0'], 1)} of the first tokens spike and"
        f" {percent(first['of texts, elsewhere'], 2)} of the others",
        at_least=0.984,
        reason=f"the claim: {percent(share, 1)} of {first['sampled']:,} ids spike at position 0",
    )


def _binomial(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval."""
    z = 1.96
    middle, half = (
        share + z * z / (2 * n),
        z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)),
    )
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def _training(tables: Tables) -> list[Claim]:
    """The claims about training: models of one seed are compared, which see the same inputs."""
    rows = {(row["attention"], row["seed"]): row for row in tables["training"]}
    seeds = sorted({seed for _, seed in rows})
    made = []
    for variant, published in REMEDIES.items():
        plain, other = ([rows[kind, seed] for seed in seeds] for kind in ("softmax", variant))
        less = [a["sink strength"] - b["sink strength"] for a, b in zip(plain, other)]
        made.append(
            out_of_reach(
                f"{variant}: weaker sinks than softmax",
                f"{published} (pre-norm {PRE_NORM:g} %), 7B",
                f"{BILLIONS} trained with it",
                f"miniature of one layer: mean α₁ with softmax less that with {variant},"
                f" {numbered(len(seeds), 'seed')}, interval: least and largest; α₁"
                f" {_mean(plain, 'sink strength'):.3f} → {_mean(other, 'sink strength'):.3f},"
                f" sink rate {percent(_mean(plain, 'sink rate'), 1)} →"
                f" {percent(_mean(other, 'sink rate'), 1)}, largest activation"
                f" {_mean(plain, 'largest activation'):.3g} →"
                f" {_mean(other, 'largest activation'):.3g}",
                measured=mean(less),
                interval=(min(less), max(less)),
            )
        )
    return made


def _mean(rows: Sequence[Row], key: str) -> float:
    return mean(float(row[key]) for row in rows)


def _far() -> Claim:
    return out_of_reach(
        "sandwich norm, QK-norm and DynamicTanh change sinks and spikes of a 7B model",
        "sinks 44.7 / 42.0 / 61.0 %, spikes 520 / 92 / 153; pre-norm 46.0 %, 3818",
        f"{BILLIONS} trained with each",
        "the models trained here have no massive activations that they could change",
    )
