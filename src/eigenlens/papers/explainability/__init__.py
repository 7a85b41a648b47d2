"""Generic attention-model explainability (arXiv 2103.15679).

TensorLens (arXiv 2601.17958) is measured beside it.

The paper explains ViLT-like, detection and vision transformers that are in no package registry. Its
rules are checked, and its test (take tokens away in the order of a method) is put to three models
of the catalogue on labelled inputs: a sentence encoder with a linear probe on reviews, a vision
backbone with a linear probe on pictures of clothing, and a language model on its own stories. A toy
with a planted token is the task whose answer is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .pictures import charts
from .planted import BUILDS, planted_run
from .tables import ORDERS, area_rows, pair_rows
from .tasks import clothing, reviews, stories

METHOD, LENS = "relevance", "TensorLens In+Out"


@dataclass(frozen=True)
class Scale:
    """`learned` inputs for a probe, `held` for its accuracy.

    Of the held ones the first `texts` or `pictures` lose their tokens.

    `stories` of `tokens` tokens for the language model; `draws` random orders; lab models of
    `layers` for the planted token.
    """

    learned_texts: int = 1000
    held_texts: int = 300
    texts: int = 100
    learned_pictures: int = 500
    held_pictures: int = 200
    pictures: int = 48
    stories: int = 24
    tokens: int = 40
    draws: int = 3
    builds: tuple[str, ...] = tuple(BUILDS)
    layers: int = 2
    steps: int = 300
    planted: int = 100
    seeds: int = 2


FULL = Scale()
QUICK = Scale(
    learned_texts=60,
    held_texts=12,
    texts=4,
    learned_pictures=30,
    held_pictures=6,
    pictures=2,
    stories=2,
    tokens=16,
    draws=2,
    builds=("pre-norm",),
    layers=1,
    steps=60,
    planted=12,
    seeds=1,
)


TASKS: dict[str, Any] = {"reviews": reviews, "clothing": clothing, "stories": stories}


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    explained = {name: partial(make, scale, seed, progress) for name, make in TASKS.items()}
    tasks = dict(
        zip(
            explained,
            parts.each(
                explained,
                progress,
                f"explaining the answers of {numbered(len(explained), 'model')}",
            ),
        )
    )
    makes = {}
    for build in scale.builds:
        for read in ("class token", "mean"):
            for start in range(seed, seed + scale.seeds):
                slug = f"planted-{build}-{read}-{start}".replace(" ", "-")
                sizes = {
                    "layers": scale.layers,
                    "steps": scale.steps,
                    "inputs": scale.planted,
                    "draws": scale.draws,
                }
                makes[slug] = partial(
                    planted_run, build, read, **sizes, seed=start, progress=progress
                )
    planted = parts.each(
        makes, progress, f"training {numbered(len(makes), 'model')} on a planted token"
    )
    return {
        "areas": [row for task, found in tasks.items() for row in area_rows(task, found)],
        "pairs": [
            row
            for task, found in tasks.items()
            for method in (METHOD, LENS)
            for row in pair_rows(task, found, method)
        ],
        "curves": [
            {"task": task, **row} for task, found in tasks.items() for row in found["curves"]
        ],
        "models": [{"task": task, **found["facts"]} for task, found in tasks.items()],
        "checks": tasks["reviews"]["checks"],
        "planted": (rows := planted_rows(planted)),
        "planted summary": planted_summary(rows),
        "planted relevance": planted_relevance(rows),
    }


def planted_rows(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per run and method.

    It says how often the method ranks the planted token first, and has its areas beside those of
    random orders.
    """
    rows = []
    for run in runs:
        chance = {order: float(np.mean(run["areas"]["random"][order])) for order in ORDERS}
        for method, top in run["top"].items():
            areas = {order: float(np.mean(run["areas"][method][order])) for order in ORDERS}
            rows.append(
                {
                    "norms": run["build"],
                    "read": run["read"],
                    "seed": run["seed"],
                    "accuracy": run["accuracy"],
                    "rising": run["rising"],
                    "method": method,
                    "top-ranked": top,
                    **areas,
                    **{f"random, {order}": chance[order] for order in ORDERS},
                }
            )
    return rows


def planted_summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per method.

    It has the share of planted tokens ranked first, mean of the seeds, for every kind of model.
    """
    kinds = list(dict.fromkeys((row["norms"], row["read"]) for row in rows))
    made = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {
            kind: [
                row["top-ranked"]
                for row in rows
                if (row["method"], row["norms"], row["read"]) == (method, *kind)
            ]
            for kind in kinds
        }
        made.append(
            {
                "method": method,
                **{f"{norms}, {read}": float(np.mean(own[norms, read])) for norms, read in kinds},
            }
        )
    return made


def planted_relevance(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Relevance for every kind of model, means of the seeds, and the least accuracy.

    `rising` is the share of the attention to the planted token that relevance counts at all.
    """
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["method"] == METHOD:
            kinds.setdefault((row["norms"], row["read"]), []).append(row)
    means = ("rising", "top-ranked", *ORDERS, *(f"random, {order}" for order in ORDERS))
    return [
        {
            "norms": norms,
            "read": read,
            "accuracy": min(row["accuracy"] for row in some),
            **{key: float(np.mean([row[key] for row in some])) for key in means},
        }
        for (norms, read), some in kinds.items()
    ]


SHOWN = (
    ("Models and their accuracy on held-out inputs", "models"),
    (
        (
            "Areas under deletion curves: positive (most relevant first, low is good), negative"
            " (least first, high is good)"
        ),
        "areas",
    ),
    ("Gains over each method, above 0 where better; some stand beside the claims", "pairs"),
    (
        (
            "Planted token: how often each method ranks it first, by the model's norms and by what"
            " is read"
        ),
        "planted summary",
    ),
    ("Planted token: relevance beside random orders", "planted relevance"),
    ("Checks of relevance", "checks"),
)
NOTES = (
    (
        "what is explained is the log-odds of the class that the model chooses (the language"
        " model: the log-probability of the token); the curves show its probability while tokens"
        " are taken away; special tokens stay"
    ),
    (
        "intervals are the middle 95 % over inputs resampled with replacement; methods are compared"
        " input by input"
    ),
    (
        "random orders, attention × gradient and the planted token are measured beside the claims:"
        " the paper has none of them"
    ),
    (
        "the paper's models (VisualBERT, LXMERT, DETR, fine-tuned ViT and BERT) are in no package"
        " registry, so its figures have no counterpart here: published directions are judged"
    ),
)
MAIN_COLUMNS = {
    "areas": ("task", "method", "positive", "negative", "positive, accuracy", "negative, accuracy"),
    "pairs": ("task", "method", "against", "order", "gain", "low", "high"),
}
paper = Paper(
    "explainability",
    "Generic attention-model explainability (arXiv 2103.15679)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
    lambda scale: ("minilm", "dinov2-small", "stories15m", "reviews", "fashion-mnist"),
    columns=MAIN_COLUMNS,
)
