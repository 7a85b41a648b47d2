"""The spike, the sparse and the sink (arXiv 2603.05498).

Attention sinks and massive activations of small decoders.

Measured here are the definitions on patterns whose sinks are known, a planted amplifier, two
pretrained decoders (sinks, spikes, the blocks where they step up and down, the amplifiers in their
MLPs, tokens that stand first, a window of keys with and without the first ones), and small models
trained with each remedy. The published values are of models of 7 billion parameters and out of
reach, and so is what the paper says of its remedies; what it says of language models is judged on
those of at least 100 million parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper, parts_by_model
from .claims import claims_of
from .exact import pattern_checks, planted
from .models import model_rows
from .pictures import charts
from .training import VARIANTS, SinksTraining, one_run
from .windows import window_means


@dataclass(frozen=True)
class Scale:
    """Models, text, tokens and inputs.

    Keys of a window and the longer texts it runs on; tokens that stand first; training.
    """

    models: tuple[str, ...]
    text: str
    length: int
    inputs: int
    window: int
    long: int
    few: int
    tokens: int
    draws: int
    training: SinksTraining


FULL = Scale(
    ("smollm2", "stories15m"),
    "wikipedia",
    64,
    16,
    32,
    128,
    8,
    2048,
    5,
    SinksTraining(32, 4, 64, 64, 1, 2, 600, 16, 4e-3, 2),
)
QUICK = Scale(
    ("smollm2",),
    "python-docs",
    32,
    3,
    16,
    48,
    3,
    64,
    1,
    SinksTraining(32, 4, 32, 32, 1, 2, 40, 8, 4e-3, 1),
)
STEP = (
    "model",
    "layer",
    "steps",
    "before",
    "largest",
    "largest channel",
    "amplified channel",
    "λ₁",
    "λ₂",
    "rank-one share",
    "concentration",
    "shared",
)
"""Columns of the table of step blocks."""


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Measure exact checks, models and training."""
    sizes = (scale.length, scale.inputs, scale.window, scale.long, scale.few, scale.tokens)
    measured = {name: partial(model_rows, name, scale.text, *sizes, seed) for name in scale.models}
    found, missing = parts_by_model(parts, measured, progress)
    models = list(found.values())
    trainings = {
        f"training/{number}-seed-{at}": partial(one_run, variant, scale.training, at, progress)
        for at in range(seed, seed + scale.training.seeds)
        for number, variant in enumerate(VARIANTS)
    }
    runs = parts.each(trainings, progress, f"training {numbered(len(trainings), 'model')}")
    layers = [row for found in models for row in found["layers"]]
    return {
        "models": [found["summary"] for found in models],
        "layers": layers,
        "steps": [{key: row[key] for key in STEP} for row in layers if row["steps"]],
        "heads": [row for found in models for row in found["heads"]],
        "first tokens": [found["first"] for found in models],
        "places": [row for found in models for row in found["places"]],
        "windows": (windows := [row for found in models for row in found["window"]]),
        "window means": window_means(windows),
        "training": runs,
        "patterns": pattern_checks(64),
        "planted": [planted(at) for at in range(seed, seed + scale.draws)],
        "missing": missing,
    }


SHOWN = (
    ("Sinks and massive activations of pretrained decoders", "models"),
    ("Tokens with a massive activation", "first tokens"),
    ("Blocks where activations step up or down, and what their MLPs amplify most", "steps"),
    ("How many of the sinks are the first token, by the attention that makes a sink", "places"),
    (
        "Perplexity with a window of keys, its positions as in the text or as in a cache",
        "window means",
    ),
    ("Small models trained with each remedy", "training"),
    ("Patterns whose sinks are known", "patterns"),
    ("How well a planted amplifier is recovered", "planted"),
)
MAIN_COLUMNS = {
    "models": (
        "model",
        "layers",
        "sink rate",
        "sinks at the first token",
        "spike",
        "spike over median",
        "inputs with spikes",
        "steps up",
        "steps down",
    ),
    "steps": (*STEP[:6], "amplified channel", "λ₁", "λ₂", "rank-one share"),
}
paper = Paper(
    "sinks",
    "The spike, the sparse and the sink (arXiv 2603.05498)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    (
        (
            "smollm2 comes from a 4-bit file; stories15m learned children's stories, so windows are"
            " measured on texts that each model samples, too"
        ),
        (
            "the models of the paper have 7 billion parameters, those trained here some ten"
            " thousand: compare directions, not values"
        ),
    ),
    columns=MAIN_COLUMNS,
    models=("models",),
    kinds=("decoder",),
)
