"""Eigen analysis of self-attention and its reconstruction (arXiv 2106.08823).

The paper's exact settings and figures were not available. What is published is therefore a
statement, and each verdict rests on a criterion of ours, which its note names. The bounds on
dimension, overlap and error were set before they were measured. The measure of training (what is
kept of full attention's gain) was chosen after a toy run, in which staying within 5 % of the full
model's loss turned out to be met trivially.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations

from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from . import training
from .claims import claims_of
from .pictures import charts
from .studies import (
    between_row,
    dimension_row,
    make_studies,
    model_name,
    overlap_row,
    reconstruction_rows,
)
from .training_table import summary


@dataclass(frozen=True)
class Scale:
    """Which models, how many inputs of which length, and which training experiment."""

    models: tuple[str, ...]
    text: str
    length: int
    inputs: int
    training: training.EigenAnalysisTraining


FULL = Scale(
    ("minilm", "distilbert-gec", "flan-t5-small", "stories15m", "smollm2", "dinov2-small"),
    "wikipedia",
    128,
    400,
    training.FULL,
)
QUICK = Scale(("minilm", "distilbert-gec"), "python-docs", 64, 48, training.QUICK)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Measure studies of the models, overlaps of eigenspaces, reconstruction and training."""
    studies = make_studies(scale, parts, seed, progress)
    texts = [made for made in studies if made.facts.model.kind != "vision"]
    tables = {
        "dimensions": [
            parts.part(f"dimensions/{model_name(made)}", partial(dimension_row, made))
            for made in studies
        ],
        "overlap": [
            parts.part(f"overlap/{model_name(made)}", partial(overlap_row, made))
            for made in studies
        ],
        "between models": [
            parts.part(
                f"between/{model_name(left)}-{model_name(right)}",
                partial(between_row, left, right),
            )
            for left, right in combinations(texts, 2)
        ],
        "reconstruction": parts.part("reconstruction", partial(reconstruction_rows, studies)),
    }
    runs, times = training.measure(scale.training, parts, progress)
    return {**tables, "training": summary(runs, times), "training runs": runs}


SHOWN = (
    (
        "Training: held-out loss in nats per masked byte; costs relative to full attention",
        "training",
    ),
)
MAIN_COLUMNS = {
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
