"""What was measured of sinks and spikes, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

from ...display import numbered, percent
from ...stats.intervals import t_interval
from ..claims import Claim, Tables
from ..verdicts import judged
from .models import FIRST
from .training import EPSILON

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


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    """Every claim: exact statements, then every model, then training."""
    models = [claim for row in tables["models"] for claim in _model(row, tables)]
    return (*_exact(tables), *models, *_training(tables), _far())


def _exact(tables: Tables) -> tuple[Claim, ...]:
    off = max(abs(row["α₁"] - row["expected"]) for row in tables["patterns"])
    rates = [row["sink rate"] for row in tables["patterns"]]
    rows = tables["planted"]
    found = mean(sorted(row["found"]) == sorted(row["planted"]) for row in rows)
    ratio, cosine = (min(row[key] for row in rows) for key in ("λ₁/λ₂", "|cos(s*, planted)|"))
    where = f"least of {numbered(len(rows), 'draw')}, width {rows[0]['d']}"
    return (
        judged(
            "α₁ of uniform causal attention over 64 tokens is H₆₄/64, that of all mass on the first"
            " token 1",
            ".0741 and 1; sink rate 0 and 1",
            off if rates == [0.0, 1.0] else math.nan,
            None,
            f"largest difference; the sink rates are {rates[0]:g} and {rates[1]:g}; reproduced if"
            " at most 1e-9",
            at_most=1e-9,
        ),
        judged(
            "a planted neuron: its channels are recovered",
            "all",
            float(found),
            None,
            f"share of {numbered(len(rows), 'draw')} in which both channels have the largest ‖U_k‖;"
            " reproduced if all",
            at_least=1.0,
        ),
        judged(
            "a planted neuron: λ₁/λ₂",
            "> 100",
            ratio,
            None,
            f"{where}; reproduced if at least 100",
            at_least=100.0,
        ),
        judged(
            "a planted neuron: |cos(s*, planted)|",
            "> .999",
            cosine,
            None,
            f"{where}; reproduced if at least .999",
            at_least=0.999,
        ),
    )


def _model(row: Row, tables: Tables) -> list[Claim]:
    name = row["model"]
    layers = [found for found in tables["layers"] if found["model"] == name]
    first = next(found for found in tables["first tokens"] if found["model"] == name)
    windows = [found for found in tables["windows"] if found["model"] == name]
    inputs = f"{row['inputs']} inputs of {row['tokens']} tokens"
    interval = None if row["low"] is None else (row["low"], row["high"])
    front = row["sinks at the first token"]
    return [
        Claim(
            f"{name}: sink rate of a pre-norm decoder",
            f"{PRE_NORM:g} % of heads and inputs, 7B",
            row["sink rate"],
            interval,
            "out of reach",
            f"miniature: share of heads and inputs with α₁ > {EPSILON:g}, {inputs}; 95 % interval"
            f" of the mean over inputs; mean α₁ {row['sink strength']:.3f}, a sink at any token"
            f" {row['anywhere']:.3f}",
        ),
        judged(
            f"{name}: the sinks are the first token",
            "position 0",
            math.nan if front is None else front,
            None,
            f"share of all sinks of heads and inputs, {inputs}; reproduced if at least half",
            at_least=0.5,
        ),
        judged(
            f"{name}: there are massive activations",
            "3818 in size, 7B",
            row["inputs with spikes"],
            None,
            "share of inputs with an activation above 100 and 1000 × the median, at the layer with"
            f" most; the largest mean magnitude is {row['spike']:,.4g},"
            f" {row['spike over median']:,.0f} × the median, in"
            f" {percent(row['spikes at the first token'])} of inputs at the first token;"
            " reproduced if at least half",
            at_least=0.5,
        ),
        _steps(row),
        # else no channel spikes
        *(_amplifiers(name, layers) if row["inputs with spikes"] >= 0.5 else ()),
        judged(
            f"{name}: most of the vocabulary spikes at position 0",
            "98.4 – 99.9 %",
            first["spike at position 0"],
            _binomial(first["spike at position 0"], first["sampled"]),
            f"share of {first['sampled']:,} ids of {first['vocabulary']:,}, each run alone, against"
            " the layers' medians on texts; interval: 95 % of a binomial; of texts"
            f" {percent(first['of texts, at position 0'], 1)} of the first tokens spike and"
            f" {percent(first['of texts, elsewhere'], 2)} of the others;"
            " reproduced if at least 98.4 %",
            at_least=0.984,
        ),
        _window(name, windows),
    ]


def _steps(row: Row) -> Claim:
    """The claim that activations step up in the first half and down in the second."""
    up, down, L = row["steps up"], row["steps down"], row["layers"]
    holds = bool(up and down) and max(up) < L / 2 <= min(down)
    ways = (
        f"{way} in {', '.join(f'L{layer}' for layer in at)}" if at else f"{way} nowhere"
        for way, at in (("up", up), ("down", down))
    )
    message = f"{', '.join(ways)} of {L}"
    return Claim(
        f"{row['model']}: activations step up in an early block and down in a late one",
        "Llama-2-7B: up at 4, down at 62 of 64",
        max(up) / L if up else None,
        None,
        "reproduced" if holds else "not reproduced",
        f"{message} (from 0), where the largest magnitude moves by half of the largest of all;"
        " measured: the last step up as a share of the depth; reproduced if all steps up are in"
        " the first half and all steps down, at least one, in the second",
    )


def _amplifiers(name: str, layers: Sequence[Row]) -> list[Claim]:
    steps = [row for row in layers if row["steps"] and row["amplified channel"] is not None]
    if not steps:
        return []
    same = [row["amplified channel"] == row["largest channel"] for row in steps]
    all_same = mean(row["amplified channel"] == row["largest channel"] for row in layers)
    up = next((row for row in steps if row["steps"] == "up"), steps[0])
    where = (
        f"L{up['layer']}, channel {up['amplified channel']}: λ₁ {up['λ₁']:.3g}, λ₂ {up['λ₂']:.3g}"
    )
    channels = [f"L{row['layer']}: {row['amplified channel']}" for row in steps]
    return [
        judged(
            f"{name}: the channel that a step block amplifies most is the one that spikes",
            "spike channels are amplified",
            float(mean(same)),
            None,
            f"share of {len(steps)} blocks that step up or down whose channel of largest |λ₁| is"
            " the largest behind it"
            f" ({', '.join(channels)});"
            f" of all {len(layers)} blocks {percent(all_same)},"
            f" by chance {percent(1 / up['channels'], 1)}; reproduced if all",
            at_least=1.0,
        ),
        judged(
            f"{name}: in the spike channel S_k is near rank one",
            "near rank one",
            up["dominance"],
            None,
            f"|λ₁/λ₂| at the block that steps up, {where}; the criterion is ours: reproduced if at"
            " least 10",
            at_least=10.0,
        ),
        judged(
            f"{name}: the amplified channels share their eigenvector",
            "shared s*",
            up["shared"],
            None,
            f"|cos| between the s* of the top two channels at L{up['layer']}; the criterion is"
            " ours: reproduced if at least .9",
            at_least=0.9,
        ),
    ]


def _binomial(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval."""
    z = 1.96
    middle, half = (
        share + z * z / (2 * n),
        z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)),
    )
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def _window(name: str, rows: Sequence[Row]) -> Claim:
    ways = {
        way: [row["loss"] for row in rows if row["keys"] == way]
        for way in dict.fromkeys(row["keys"] for row in rows)
    }
    whole, kept, alone = ways.values()
    gains = [b - a for a, b in zip(kept, alone)]
    gain, low, high = t_interval(gains)
    size = {way: math.exp(min(mean(losses), 700)) for way, losses in ways.items()}
    message = ", ".join(f"{way} {value:.4g}" for way, value in size.items())
    return Claim(
        f"{name}: a window of keys needs the first {FIRST}",
        "StreamingLLM: with them the perplexity stays, without it is lost",
        gain,
        None if low is None or high is None else (low, high),
        "reproduced" if low is not None and low > 0 else "not reproduced",
        f"nats per token that {FIRST} first keys save in a window of {rows[0]['window']} keys,"
        f" {len(whole)} texts of {rows[0]['tokens']} tokens, 95 % interval of the mean; perplexity:"
        f" {message}; reproduced if the interval is above 0",
    )


def _training(tables: Tables) -> list[Claim]:
    """The claims about training: models of one seed are compared, which see the same inputs."""
    rows = {(row["attention"], row["seed"]): row for row in tables["training"]}
    seeds = sorted({seed for _, seed in rows})
    made = []
    for variant, published in REMEDIES.items():
        less = [
            rows["softmax", seed]["sink strength"] - rows[variant, seed]["sink strength"]
            for seed in seeds
        ]
        plain, other = ([rows[kind, seed] for seed in seeds] for kind in ("softmax", variant))
        made.append(
            Claim(
                f"trained small, {variant}: weaker sinks than softmax",
                f"{published} (pre-norm {PRE_NORM:g} %), 7B",
                mean(less),
                (min(less), max(less)),
                "reproduced" if min(less) > 0 else "not reproduced",
                f"mean α₁ with softmax less that with {variant}, {numbered(len(seeds), 'seed')},"
                f" interval: least and largest; α₁ {_mean(plain, 'sink strength'):.3f} →"
                f" {_mean(other, 'sink strength'):.3f}, sink rate"
                f" {percent(_mean(plain, 'sink rate'), 1)} →"
                f" {percent(_mean(other, 'sink rate'), 1)}, largest activation"
                f" {_mean(plain, 'largest activation'):.3g} →"
                f" {_mean(other, 'largest activation'):.3g}; the direction is judged: reproduced if"
                " α₁ is less in every seed",
            )
        )
    return made


def _mean(rows: Sequence[Row], key: str) -> float:
    return mean(float(row[key]) for row in rows)


def _far() -> Claim:
    return Claim(
        "sandwich norm, QK-norm and DynamicTanh change sinks and spikes of a 7B model",
        "sinks 44.7 / 42.0 / 61.0 %, spikes 520 / 92 / 153; pre-norm 46.0 %, 3818",
        None,
        None,
        "out of reach",
        "a model of 7 billion parameters is not trained here; those that are have no massive"
        " activations",
    )
