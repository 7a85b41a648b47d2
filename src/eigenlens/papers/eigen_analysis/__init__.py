"""Eigen analysis of self-attention and its reconstruction (arXiv 2106.08823).

The paper's exact settings and figures were not available. What is published is therefore a
statement, and each verdict rests on a criterion of ours, applied along a curve: a claim that holds
at some thresholds and not at others depends on them. The bounds on dimension, overlap and error
were set before they were measured. The measure of training (what is kept of full attention's gain)
was chosen after a toy run, in which staying within 5 % of the full model's loss turned out to be
met trivially.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from ...run.parts import Parts
from ...run.progress import Progress
from ...stats.within import SHARES
from ..claims import Tables
from ..paper import Paper
from . import training
from .claims import claims_of
from .pictures import charts
from .studies import (
    between_rows,
    dimension_row,
    estimator_rows,
    first_without_mask,
    make_studies,
    matrix_rows,
    model_name,
    overlap_rows,
    reconstruction_rows,
)
from .training_table import summary


@dataclass(frozen=True)
class Scale:
    """Which models, how many inputs of which length, and which training experiment.

    Other estimators are tried on `tried` held-out inputs.
    """

    models: tuple[str, ...]
    text: str
    length: int
    inputs: int
    tried: int
    training: training.EigenAnalysisTraining


FULL = Scale(
    ("minilm", "distilbert-gec", "flan-t5-small", "stories15m", "smollm2", "dinov2-small"),
    "wikipedia",
    128,
    400,
    16,
    training.FULL,
)
QUICK = Scale(("minilm", "distilbert-gec"), "python-docs", 64, 48, 4, training.QUICK)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Measure studies of the models, overlaps of eigenspaces, reconstruction and training."""
    studies = make_studies(scale, parts, seed, progress)
    texts = [made for made in studies if made.facts.model.kind != "vision"]
    one = first_without_mask(studies)
    tables = {
        "dimensions": [
            parts.part(f"dimensions/{model_name(made)}", partial(dimension_row, made))
            for made in studies
        ],
        "matrices": _joined(
            parts.part(f"matrices/{model_name(made)}", partial(matrix_rows, made))
            for made in studies
        ),
        "overlap": _joined(
            parts.part(f"overlap/{model_name(made)}", partial(overlap_rows, made))
            for made in studies
        ),
        "between models": _joined(
            parts.part(
                f"between/{model_name(left)}-{model_name(right)}",
                partial(between_rows, left, right),
            )
            for left, right in combinations(texts, 2)
        ),
        "reconstruction": parts.part("reconstruction", partial(reconstruction_rows, one)),
        "estimators": parts.part("estimators", partial(estimator_rows, one, scale.tried, seed)),
    }
    runs, times = training.measure(scale.training, parts, progress)
    return {**tables, "training": summary(runs, times), "training runs": runs}


def _joined(tables: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for table in tables for row in table]


SHOWN = (
    ("Components of the median head's rows, by share of the held-out variance", "dimensions"),
    ("Variance of whole score matrices in so many components, median head", "matrices"),
    ("Overlap of eigenspaces within a model, by rank", "overlap"),
    ("Overlap of eigenspaces between models, by rank", "between models"),
    ("Error of scores estimated from a part of the keys", "reconstruction"),
    ("Error of other estimators at a budget", "estimators"),
    (
        "Training: held-out loss in nats per masked byte; costs relative to full attention",
        "training",
    ),
)
MAIN_COLUMNS = {
    "dimensions": (
        "model",
        "n",
        *(f"centred {share:.0%}" for share in SHARES),
        *(f"raw {share:.0%}" for share in SHARES[:2]),
    ),
    "matrices": ("model", "inputs", "components", "held out", "in the sample"),
    "overlap": ("model", "masked", "rank", "chance", "across layers", "times chance"),
    "between models": ("left", "right", "masked", "rank", "overlap", "times chance"),
    "reconstruction": ("share", "keys", "median", "least", "most", "best of rank m"),
    "estimators": ("estimator", "budget", "pairs", "work", "score_error_median"),
    "training": (
        "mechanism",
        "protocol",
        "share",
        "loss",
        "accuracy",
        "kept",
        "attention_cost",
        "forward_milliseconds",
    ),
}
paper = Paper(
    "eigen-analysis",
    "Eigen analysis of self-attention and its reconstruction from partial computation (arXiv"
    " 2106.08823)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    columns=MAIN_COLUMNS,
    models=("models",),
    kinds=("encoder", "decoder", "encoder-decoder", "vision"),
)
