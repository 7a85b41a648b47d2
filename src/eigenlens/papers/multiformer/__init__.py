"""Multiformer: a mechanism for each head (arXiv 2205.07100).

The paper translates speech; its scores are out of reach here. Its layer configurations are built
and run, its head relevance is mapped for loaded models, and its question (does a mix of cheap heads
do what full attention does, and do the heads then count alike?) is asked of a task with the
redundancy of speech: letters that are each repeated four times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ...attention.relevance import evenness
from ...display import numbered
from ...lab import Repeated, TrainingSettings, Transformer, train
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .encoders import KINDS, checks, configurations
from .pictures import charts
from .relevance import catalogue_map, lab_relevance


@dataclass(frozen=True)
class Scale:
    """`inputs` texts of `length` tokens for the maps of `models`; the rest is the miniature's."""

    text: str = "wikipedia"
    length: int = 128
    inputs: int = 16
    models: tuple[str, ...] = ("minilm", "distilbert-gec", "stories15m")
    letters: int = 12
    alphabet: int = 26
    layers: int = 2
    width: int = 64
    steps: int = 200
    seeds: int = 3


FULL = Scale()
QUICK = Scale(
    text="python-docs",
    length=32,
    inputs=4,
    models=("minilm",),
    letters=6,
    alphabet=10,
    width=32,
    steps=25,
    seeds=1,
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    facts = parts.part("checks", partial(checks, seed))
    built = parts.part("configurations", partial(configurations, seed))
    maps: list[dict[str, Any]] = []
    stage = f"measuring the relevance of heads of {numbered(len(scale.models), 'model')}"
    for done, name in enumerate(scale.models):
        progress(stage, done, len(scale.models))
        maps += parts.part(
            f"map-{name}",
            partial(catalogue_map, name, scale.text, scale.length, scale.inputs, seed),
        )
    makes = {}
    for start in range(seed, seed + scale.seeds):
        for kind in KINDS:
            slug = kind.replace(",", "").replace(" ", "-")
            makes[f"run-{slug}-{start}"] = partial(miniature, kind, scale, start, progress)
    runs = parts.each(makes, progress, f"training {numbered(len(makes), 'model')}")
    return {
        "checks": facts,
        "configurations": built,
        "maps": maps,
        "layers": layer_rows(maps),
        "runs": runs,
        "kinds": kind_rows(runs),
    }


def miniature(kind: str, scale: Scale, seed: int, progress: Progress) -> dict[str, Any]:
    """One training on repeated letters: accuracy, evenness of head relevance, cost of attention."""
    task = Repeated(letters=scale.letters, alphabet=scale.alphabet)
    torch.manual_seed(seed)
    chosen = {"local": {"window": 6}, "conv": {"kernel": 5, "stride": 2}}
    config = task.config(
        layers=scale.layers,
        width=scale.width,
        heads=4,
        mechanism=KINDS[kind],
        mechanism_settings=chosen,
    )
    model = Transformer(config)
    settings = TrainingSettings(scale.steps, batch=32, rate=1e-3, measure=scale.steps, seed=seed)
    done = train(model, task, settings, progress=progress, label=f"training heads: {kind}")
    relevance = lab_relevance(model, next(iter(task.held_out())).inputs)
    full = Transformer(task.config(layers=scale.layers, width=scale.width, heads=4))
    return {
        "heads": kind,
        "seed": seed,
        "accuracy": done.accuracy,
        "loss": done.loss,
        "evenness": float(evenness(relevance).mean()),
        "cost": model.attention_cost(task.length) / full.attention_cost(task.length),
        "relevance": relevance.tolist(),
    }


def layer_rows(maps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evenness of each layer of the loaded models, with the least and the most relevant head."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in maps:
        found[row["model"], row["layer"]].append(row)
    return [
        {
            "model": model,
            "layer": layer,
            "heads": len(some),
            "evenness": some[0]["evenness"],
            "least": min(row["relevance"] for row in some),
            "most": max(row["relevance"] for row in some),
        }
        for (model, layer), some in found.items()
    ]


def kind_rows(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each kind of layer: means over the seeds, the least and the largest accuracy."""
    rows = []
    for kind in KINDS:
        some = [row for row in runs if row["heads"] == kind]
        each = [row["accuracy"] for row in some]
        mean = {
            key: float(np.mean([row[key] for row in some]))
            for key in ("accuracy", "loss", "evenness", "cost")
        }
        rows.append(
            {"heads": kind, **mean, "low": min(each), "high": max(each), "seeds": len(each)}
        )
    return rows


SHOWN = (
    ("Exact checks of heads of several kinds", "checks"),
    ("Layer configurations of the paper, and their cost (full attention = 1)", "configurations"),
    ("Evenness of head relevance in loaded models", "layers"),
    ("Repeated letters: accuracy and cost by kinds of heads, mean of the seeds", "kinds"),
)
NOTES = (
    (
        "a window of 64 is taken as 32 tokens to either side; speech translation itself is out of"
        " reach"
    ),
)
paper = Paper(
    "multiformer",
    "Multiformer: a mechanism for each head (arXiv 2205.07100)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
    models=("models",),
    kinds=("encoder", "decoder"),
)
