"""Attention is not all you need (arXiv 2103.03404).

Pure attention loses rank doubly exponentially with depth.

The published curves are means over 32 texts. Models at their random start are built here from their
configs, with several seeds: where a curve starts depends on the seed more than on the text.
Pretrained BERT, ALBERT and XLNet are in no package registry; the catalogue's
pretrained models stand in for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ...stats.rounding import rows_in_words
from ..claims import Tables
from ..paper import Paper
from . import training
from .claims import FLOOR, claims_of
from .models import NO_NORM, OTHER_TEXT, catalogue_runs, orders, other_run, random_run
from .pictures import charts
from .tables import (
    circle_row,
    random_curves,
    rows_by_depth,
    rows_by_length,
    share_rows,
    single_path_rows,
)


@dataclass(frozen=True)
class Scale:
    """Which random starts and pretrained models, how many texts and seeds, and which training."""

    random: tuple[str, ...]
    layers: int
    width: int
    seeds: int
    models: tuple[str, ...]
    text: str
    length: int
    inputs: int
    paths: int
    training: training.RankCollapseTraining


FULL = Scale(
    ("bert", "albert"),
    12,
    768,
    6,
    (
        "minilm",
        "distilbert-gec",
        "flan-t5-small",
        "stories15m",
        "smollm2",
        "dinov2-small",
        "whisper-tiny-en",
    ),
    "wikipedia",
    128,
    32,
    100,
    training.FULL,
)
QUICK = Scale(("bert", "albert"), 3, 48, 1, ("minilm",), "python-docs", 32, 4, 10, training.QUICK)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Measure random starts, pretrained models, orders of contraction, trained models, circles."""
    starts = [(family, start) for family in scale.random for start in range(scale.seeds)]
    own = {
        f"random/{family}-{start}": partial(random_run, family, start, scale, seed, progress)
        for family, start in starts
    }
    runs = parts.each(own, progress, f"measuring {numbered(len(own), 'random model')}")
    changed = {
        f"random/{family}-{start}-{what.replace(' ', '-')}": partial(
            other_run, what, family, start, scale, seed
        )
        for family, start in starts
        for what in (NO_NORM, OTHER_TEXT)
    }
    others = parts.each(
        changed, progress, "measuring random models without norms and on other text"
    )
    models = catalogue_runs(scale, parts, seed, progress)
    circles = training.circle_table(scale.training, parts, progress)
    return {
        "random curves": (curves := random_curves([*runs, *others])),
        "random by depth": rows_by_depth(curves),
        "models": (pretrained := [row for model in models for row in model["curves"]]),
        "models to read": rows_in_words(
            pretrained, {name for row in pretrained for name in row}, FLOOR
        ),
        "single paths": (single := single_path_rows(runs, models)),
        "single paths to read": rows_in_words(single, ("residual",), FLOOR),
        "path shares": share_rows(),
        "orders": parts.part("orders", partial(orders, seed)),
        "bounds": [row for model in [*runs, *models] for row in model["bounds"]],
        "path accuracy": (accuracy := training.path_table(scale.training, parts, progress)),
        "accuracy by length": rows_by_length(accuracy),
        "circle": [circle_row(row) for row in circles],
        "trajectories": circles,
        "sentences": [{"model": model["model"], "sentence": model["sentence"]} for model in models],
    }


SHOWN = (
    (
        "Relative residual at random start by depth, mean of the seeds, and as published",
        "random by depth",
    ),
    ("Relative residual of pretrained models: the model, and pure attention", "models to read"),
    (
        "Products of patterns along single paths: relative residual by length",
        "single paths to read",
    ),
    (
        (
            "Bounds: share of the heads in which the cubic bound's condition holds; bounds that"
            " were exceeded"
        ),
        "bounds",
    ),
    (
        (
            "Accuracy of what paths of a length add, read out alone (whole: the model; majority:"
            " the commonest answer)"
        ),
        "accuracy by length",
    ),
    ("Two points on a circle when the output is fed back as input", "circle"),
)
paper = Paper(
    "rank-collapse",
    "Attention is not all you need: pure attention loses rank doubly exponentially with depth"
    " (arXiv 2103.03404)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    models=("models",),
)
