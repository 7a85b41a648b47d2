"""Attention that does not explain away (arXiv 2009.14308).

Scores are normalised over queries, then over keys.

Under softmax a key can lose all its weight to others. Normalised over the queries first, it keeps
at least 1/S. Measured here are the guarantee and that it is tight, the view as mixtures of
Gaussians, keys of pretrained models that softmax explains away, and a small model trained with each
normalisation. The paper's benchmarks are out of reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper, parts_by_model
from .claims import claims_of
from .keys import causal_leak, mixtures, model_keys, random_keys, tight
from .pictures import charts
from .training import DoublyNormalisedTraining, training_rows


@dataclass(frozen=True)
class Scale:
    """Sizes of random scores and how many are drawn; models, text and inputs; and the training."""

    sizes: tuple[int, ...]
    draws: int
    models: tuple[str, ...]
    text: str
    length: int
    inputs: int
    training: DoublyNormalisedTraining


FULL = Scale(
    (8, 32, 128),
    50,
    ("minilm", "distilbert-gec", "smollm2", "stories15m"),
    "wikipedia",
    128,
    16,
    DoublyNormalisedTraining("python-docs", 400_000, 64, 64, 3, 4, 300, 2, 3),
)
QUICK = Scale(
    (8, 32),
    10,
    ("minilm",),
    "python-docs",
    48,
    4,
    DoublyNormalisedTraining("python-docs", 60_000, 32, 32, 2, 2, 30, 1, 1),
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Measure random scores, mixtures, models and training."""
    makes = {
        name: partial(model_keys, name, scale.text, scale.length, scale.inputs, seed)
        for name in scale.models
    }
    found, missing = parts_by_model(parts, makes, progress)
    models = list(found.values())
    heads = [row for found in models for row in found["heads"]]
    runs = training_rows(scale.training, parts, seed, progress)
    S = max(scale.sizes)
    return {
        "random scores": parts.part(
            "random-scores", partial(random_keys, scale.sizes, scale.draws, seed)
        ),
        "tightness": [tight(S, strength) for strength in (1.0, 5.0, 10.0, 20.0, 40.0)],
        "mixtures": mixtures(12, 20, 16, seed),
        "causal": [
            {"tokens": n, "earlier patterns move by": causal_leak(n, seed)} for n in (8, 32)
        ],
        "models": _summary(heads, scale.length),
        "heads": heads,
        "histogram": [row for found in models for row in found["histogram"]],
        "missing": missing,
        "training": [{key: value for key, value in run.items() if key != "curve"} for run in runs],
        "training curves": [
            {"task": run["task"], "run": f"{run['mechanism']}, seed {run['seed']}", **point}
            for run in runs
            for point in run["curve"]
        ],
    }


def _summary(heads: Sequence[dict[str, Any]], S: int) -> list[dict[str, Any]]:
    """All heads of a model in one row for each normalisation."""
    rows = []
    for model, attention in dict.fromkeys((row["model"], row["attention"]) for row in heads):
        some = [row for row in heads if (row["model"], row["attention"]) == (model, attention)]
        rows.append(
            {
                "model": model,
                "attention": attention,
                "heads": len(some),
                "S": S,
                "keys below 1/S": sum(row["below 1/S"] for row in some) / len(some),
                "keys below 0.1": sum(row["below 0.1"] for row in some) / len(some),
                "heads with 1 % below 1/S": (
                    sum(row["below 1/S"] >= 0.01 for row in some) / len(some)
                ),
                "least": min(row["least"] for row in some),
            }
        )
    return rows


SHOWN = (
    (
        "Keys explained away: share of the keys whose weight (1 on average) is below a threshold",
        "models",
    ),
    ("Random scores: the least weight of a key, times S", "random scores"),
    ("Scores at the edge of the guarantee: the least weight of a key, times S", "tightness"),
    ("Patterns as posteriors of mixtures of Gaussians", "mixtures"),
    ("Under a causal mask: how far the pattern of earlier queries moves with the last", "causal"),
    ("Training a small model: held-out loss in nats", "training"),
)
paper = Paper(
    "doubly-normalised",
    "Attention that does not explain away (arXiv 2009.14308)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    (
        (
            "models under a causal mask are measured with softmax alone: the step over queries"
            " would let them see the future"
        ),
    ),
    models=("models",),
    kinds=("encoder", "decoder"),
)
