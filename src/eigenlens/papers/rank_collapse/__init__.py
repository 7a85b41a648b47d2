"""Attention is not all you need (arXiv 2103.03404).

Pure attention loses rank doubly exponentially with depth.

The published curves are means over 32 texts, of one random start. Models at their random start are
built here from their configs, with several seeds: where a curve starts depends on the seed more
than on the text, so that the full run has fewer texts and more seeds. Trainings are made twice: as
this package trains, and by the settings of the authors' scripts.
Pretrained BERT, ALBERT and XLNet are in no package registry; the catalogue's
pretrained models stand in for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ...stats.rounding import rows_in_words
from ..claims import Tables
from ..paper import Paper
from . import training
from .authors_circle import AuthorsCircle, authors_circles
from .authors_settings import HULL, MEMORISE, QUICK_TRIALS, SORT, AuthorsTrial
from .authors_training import authors_table
from .claims import FLOOR, claims_of
from .models import catalogue_runs, orders
from .pictures import charts
from .random_starts import changed_forms, changed_run, random_run
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
    """Which random starts and pretrained models, how many texts and seeds, and which training.

    The first `changed` random starts are measured without norms and on another text, too. Random
    starts read `inputs` texts, pretrained models `read`.
    """

    random: tuple[str, ...]
    layers: int
    width: int
    seeds: int
    changed: int
    models: tuple[str, ...]
    text: str
    length: int
    inputs: int
    read: int
    paths: int
    training: training.RankCollapseTraining
    authors: tuple[AuthorsTrial, ...]
    circle: AuthorsCircle


THOROUGH = Scale(
    ("bert", "albert"),
    12,
    768,
    32,
    8,
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
    16,
    100,
    training.FULL,
    tuple(replace(trial, seeds=3) for trial in (SORT, HULL, MEMORISE)),
    AuthorsCircle(seeds=12),
)
FULL = replace(
    THOROUGH,
    seeds=16,
    changed=6,
    inputs=8,
    authors=(SORT, HULL, replace(MEMORISE, data={**MEMORISE.data, "length": 64})),
    circle=AuthorsCircle(),
)
QUICK = Scale(
    ("bert", "albert"),
    3,
    48,
    1,
    1,
    ("minilm",),
    "python-docs",
    32,
    4,
    4,
    10,
    training.QUICK,
    QUICK_TRIALS,
    AuthorsCircle(points=200, epochs=20, rate=1e-3, steps=40, seeds=1),
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Measure random starts, pretrained models, orders of contraction, trained models, circles."""
    starts = [(family, start) for family in scale.random for start in range(scale.seeds)]
    own = {
        f"random/{family}-{start}": partial(random_run, family, start, scale, seed, progress)
        for family, start in starts
    }
    runs = parts.each(own, progress, f"measuring {numbered(len(own), 'random model')}")
    again = {
        f"random/{family}-{start}-{form}-{what}".replace(" ", "-"): partial(
            changed_run, form, what, family, start, scale, seed
        )
        for family, start in starts
        if start < scale.changed
        for form, what in changed_forms(family)
    }
    others = parts.each(again, progress, "measuring random models without norms and on other text")
    models = catalogue_runs(scale, parts, seed, progress)
    circles = [
        *training.circle_table(scale.training, parts, progress),
        *authors_circles(scale.circle, parts, progress),
    ]
    return {
        "random curves": (curves := random_curves([*runs, *others])),
        "random by depth": rows_by_depth(curves),
        "models": (pretrained := [row for model in models for row in model["curves"]]),
        "models to read": rows_in_words(
            pretrained, {name for row in pretrained for name in row}, FLOOR
        ),
        "single paths": (single := single_path_rows(runs, models)),
        "single paths to read": rows_in_words(single, ("residual", "rank one"), FLOOR),
        "path shares": share_rows(),
        "orders": parts.part("orders", partial(orders, seed)),
        "bounds": [row for model in [*runs, *models] for row in model["bounds"]],
        "path accuracy": (accuracy := training.path_table(scale.training, parts, progress)),
        "authors accuracy": (theirs := authors_table(scale.authors, parts, progress)),
        "accuracy by length": rows_by_length(accuracy, theirs),
        "circle": [circle_row(row) for row in circles],
        "trajectories": circles,
        "sentences": [{"model": model["model"], "sentence": model["sentence"]} for model in models],
    }


SHOWN = (
    (
        "Relative residual at random start by depth: the seeds, and as published",
        "random by depth",
    ),
    ("Relative residual of pretrained models: the model, and pure attention", "models to read"),
    (
        "Products of patterns along single paths: residual about the mean row and about rank one",
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
            "Accuracy of paths of a length, as we train and by the authors' settings (whole: the"
            " model; majority: the commonest answer; ceiling: the most that can be right)"
        ),
        "accuracy by length",
    ),
    ("Two points on a circle when the output is fed back as input", "circle"),
)
MAIN_COLUMNS = {
    "circle": ("settings", "variant", "jitter", "seed", "least", "at the end", "turn", "merged"),
}
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
    columns=MAIN_COLUMNS,
    thorough=THOROUGH,
    models=("models",),
)
