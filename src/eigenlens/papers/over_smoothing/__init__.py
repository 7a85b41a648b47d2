"""Revisiting over-smoothing in BERT from the perspective of graph (arXiv 2202.08625).

The paper fine-tunes BERT, RoBERTa and ALBERT on GLUE and others; their weights are in no package
registry. Its bound is checked in every block of post-norm encoders, its curves are drawn for the
catalogue's encoders of BERT's family, and its remedy is tried three times: on digits, learned by a
lab encoder as a whole, and on the sentiment of reviews, read from a frozen encoder, and by one that
is fine-tuned as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from ...data.needs import names_of_scale
from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .fine_tuning import tuned_run
from .models import READ_OUTS, digits_run, pretrained, reviews_run
from .pictures import charts


@dataclass(frozen=True)
class Scale:
    """`inputs` texts of `length` tokens for the curves.

    Lab encoders of `layers` × `width`; `reviews` for the frozen one, `tuned` for the one that is
    fine-tuned.
    """

    text: str = "wikipedia"
    length: int = 128
    inputs: int = 24
    models: tuple[str, ...] = ("minilm", "distilbert-gec")
    tokens: Literal["pixels", "rows"] = "rows"
    layers: int = 8
    width: int = 64
    steps: int = 300
    reviews: int = 1600
    epochs: int = 15
    tuned: int = 1600
    tuned_epochs: int = 2
    seeds: int = 3


FULL = Scale()
QUICK = Scale(
    text="python-docs",
    length=32,
    inputs=4,
    models=("minilm",),
    layers=4,
    width=32,
    steps=40,
    reviews=120,
    epochs=3,
    tuned=48,
    tuned_epochs=1,
    seeds=2,
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    blocks: list[dict[str, Any]] = []
    stage = f"measuring {numbered(len(scale.models), 'pretrained encoder')}"
    for done, name in enumerate(scale.models):
        progress(stage, done, len(scale.models))
        blocks += parts.part(f"blocks-{name}", partial(pretrained, name, scale, seed))
    tasks = {"digits": digits_run, "reviews": reviews_run, "tuned": tuned_run}
    makes = {
        f"{task}-{read_out.replace(' ', '-')}-{start}": partial(
            run, read_out, scale, start, progress
        )
        for start in range(seed, seed + scale.seeds)
        for read_out in READ_OUTS
        for task, run in tasks.items()
    }
    runs = parts.each(makes, progress, f"training {numbered(len(makes), 'read-out')}")
    digits, read, tuned = (runs[i::3] for i in range(3))
    blocks += [row for run in digits for row in run["steps"]]
    places = places_of(blocks)
    blocks += [row for run in tuned for row in run["steps"]]
    on_reviews = [row for run in tuned for row in run["depth"]]
    fusion = [
        row
        for three in zip(digits, read, tuned)
        for row in (three[0]["row"], three[1], three[2]["row"])
    ]
    return {
        "blocks": blocks,
        "on reviews": on_reviews,
        "depth": depth_rows([*places, *on_reviews]),
        "layers": layer_rows(blocks),
        "fusion": fusion,
        "read-outs": fusion_rows(fusion),
    }


def places_of(blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Similarity and d_M of every input at every depth, from what was measured of every block."""
    rows = []
    for row in blocks:
        place = {key: row[key] for key in ("model", "state")}
        ends = {row["layer"] + 1: ""} | ({0: "_in"} if row["layer"] == 0 else {})
        rows += [
            {
                **place,
                "depth": depth,
                "similarity": row[f"similarity{end}"],
                "distance": row[f"distance{end}"],
            }
            for depth, end in ends.items()
        ]
    return rows


def depth_rows(places: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Token similarity at every depth, and the mean d_M.

    The similarity is the mean over inputs, with its tenth and ninetieth percentile.
    """
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in places:
        found[row["model"], row["state"], row["depth"]].append((row["similarity"], row["distance"]))
    rows = []
    for (model, state, depth), values in sorted(found.items(), key=lambda item: item[0]):
        alike = np.array([value for value, _ in values])
        low, high = np.percentile(alike, [10, 90]).tolist()
        rows.append(
            {
                "model": model,
                "state": state,
                "depth": depth,
                "similarity": float(alike.mean()),
                "low": low,
                "high": high,
                "d_M": float(np.mean([d for _, d in values])),
            }
        )
    return rows


def layer_rows(blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each block of each model in one row: means over inputs, the least v, how often v < 1."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in blocks:
        found[row["model"], row["state"], row["layer"]].append(row)
    rows = []
    for (model, state, layer), some in sorted(found.items(), key=lambda item: item[0]):
        mean = {
            key: float(np.mean([row[key] for row in some]))
            for key in ("ratio", "sigma", "s", "root")
        }
        maps = [row["maps"] for row in some if row["maps"] is not None]
        rows.append(
            {
                "model": model,
                "state": state,
                "layer": layer,
                "maps": float(np.mean(maps)) if maps else None,
                **mean,
                "largest ratio": max(row["ratio"] for row in some),
                "least v": min(row["v"] for row in some),
                "least sharp": min(row["sharp"] for row in some),
                "v < 1": sum(row["v"] < 1 for row in some),
                "beyond v": sum(row["ratio"] > row["v"] for row in some),
                "inputs": len(some),
            }
        )
    return rows


def fusion_rows(fusion: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each read-out of each task: means over the seeds, the least and the largest accuracy."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in fusion:
        found[row["model"], row["read-out"]].append(row)
    rows = []
    for (model, read_out), some in sorted(
        found.items(), key=lambda item: (item[0][0], READ_OUTS.index(item[0][1]))
    ):
        each = [row["accuracy"] for row in some]
        mean = {
            key: float(np.mean([row[key] for row in some]))
            for key in ("accuracy", "loss", "similarity")
        }
        rows.append(
            {
                "model": model,
                "read-out": read_out,
                **mean,
                "low": min(each),
                "high": max(each),
                "seeds": len(each),
            }
        )
    return rows


SHOWN = (
    ("Mean cosine of two tokens at every depth", "depth"),
    ("How each block draws tokens together (ratio), and its bound v", "layers"),
    ("Accuracy by read-out, mean of the seeds", "read-outs"),
)
NOTES = (
    (
        "the bound takes s over the products W_V W_O of the heads and over both maps of the MLP; no"
        " input is padded"
    ),
    "BERT, RoBERTa and ALBERT, which the paper fine-tunes, are in no package registry",
)
paper = Paper(
    "over-smoothing",
    "Revisiting over-smoothing in BERT from the perspective of graph (arXiv 2202.08625)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
    lambda scale: (*names_of_scale(scale), "digits", "reviews"),
    models=("models",),
    kinds=("encoder",),
)
