"""The claims about the remedy: all layers are read out instead of the last alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...display import numbered
from ...lab.fusion import FUSIONS
from ..claims import Claim
from ..verdicts import judged_along, out_of_reach

Rows = Sequence[dict[str, Any]]


def fusion_claims(rows: Rows) -> list[Claim]:
    """What each fusion gains in a fine-tuned encoder, then how alike fused tokens are."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    tuned = next(model for model in models if model.endswith("fine-tuned"))
    return [
        *(_beats(fusion, tuned, models, rows) for fusion in FUSIONS),
        *(_less_alike(model, rows) for model in models),
    ]


def _gains(fusion: str, model: str, rows: Rows) -> list[float]:
    """Accuracy beyond that of the last layer alone, seed by seed."""
    own = {(row["read-out"], row["seed"]): row["accuracy"] for row in rows if row["model"] == model}
    return [own[fusion, seed] - own["last layer", seed] for seed in {seed for _, seed in own}]


def _beats(fusion: str, tuned: str, models: Sequence[str], rows: Rows) -> Claim:
    gains = {model: _gains(fusion, model, rows) for model in models}
    beside = ", ".join(
        f"{model} {np.mean(each):+.4f} ({min(each):+.4f} to {max(each):+.4f})"
        for model, each in gains.items()
    )
    return out_of_reach(
        f"fusion by {fusion} beats the last layer in a fine-tuned encoder",
        "raises the scores of BERT, RoBERTa and ALBERT",
        "BERT, RoBERTa or ALBERT and the tasks that they were fine-tuned on",
        f"miniatures: gain in accuracy over the last layer alone, mean, least and largest of"
        f" {numbered(len(gains[tuned]), 'seed')}: {beside}; measured is that of {tuned}",
        measured=float(np.mean(gains[tuned])),
        interval=(min(gains[tuned]), max(gains[tuned])),
    )


def _less_alike(model: str, rows: Rows) -> Claim:
    def mean(read_out: str) -> float:
        own = [r["similarity"] for r in rows if (r["model"], r["read-out"]) == (model, read_out)]
        return float(np.mean(own))

    plain = mean("last layer")
    change = {fusion: mean(fusion) - plain for fusion in FUSIONS}
    return judged_along(
        f"{model}: fused tokens are less alike",
        "less alike",
        change,
        "concat",
        (min(change.values()), max(change.values())),
        "holds for a fusion whose tokens are less alike than those of the last layer",
        f"change of the mean cosine of two tokens of what is read out, from {plain:.3f} of the last"
        " layer; measured is that of concat; interval: least and largest of the three",
        at_most=-1e-9,
        reason=f"the claim: no fusion makes them less alike, the least change is"
        f" {min(change.values()):+.3g}",
    )
