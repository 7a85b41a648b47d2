"""Unveiling induction heads: provable training dynamics and feature learning (arXiv 2409.10559).

A two-layer model learns to guess the next token of sequences whose Markov kernels it has never
seen. Its training is followed here parameter by parameter and compared with the published run. The
heads it proves to arise are looked for in loaded models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...captures import Labels, location_of
from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper, parts_by_model
from .claims import claims_of
from .dynamics import EPOCHS, curve, other_parent_rows, readings, stages, table
from .heads import handmade_scores, model_heads
from .pictures import charts


@dataclass(frozen=True)
class Scale:
    """`sequences` per training, `seeds` of it.

    `fewer` for readings, stages and other parents; `shrink` divides their epochs.
    """

    sequences: int
    seeds: int
    fewer: int
    shrink: int
    models: tuple[str, ...]
    inputs: int
    draws: int  # of heads that are ablated as a control


FULL = Scale(
    10_000,
    20,
    4000,
    1,
    ("smollm2", "flan-t5-small", "stories15m", "minilm", "distilbert-gec"),
    8,
    5,
)
QUICK = Scale(2000, 2, 500, 5, ("smollm2", "minilm"), 2, 1)
OLDEST = 300
"""Epochs of the published run."""
DRAWN = 5
"""Trainings whose every epoch is kept and drawn."""


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    starts = range(seed, seed + scale.seeds)
    runs = parts.each(
        {f"curve-{start}": partial(curve, scale.sequences, start, OLDEST) for start in starts},
        progress,
        f"training from {numbered(scale.seeds, 'seed')}",
    )
    apart = {
        f"stages-{start}": partial(stages, scale.fewer, start, scale.shrink) for start in starts[:3]
    }
    apart["readings"] = partial(readings, scale.fewer, seed, OLDEST)
    apart["others"] = partial(other_parent_rows, scale.fewer, seed, OLDEST // scale.shrink)
    *staged, read, sets = parts.each(
        apart, progress, "training in stages, by other readings and with other parents"
    )
    makes = {
        name: partial(model_heads, name, scale.inputs, scale.draws, seed) for name in scale.models
    }
    found, missing = parts_by_model(parts, makes, progress)
    return {
        "curve": table(runs),
        "runs": [
            {
                key: run[key]
                for key in (
                    "seed",
                    "p > .99",
                    "least p after epoch 10",
                    "p",
                    "copies",
                    "a",
                    "seconds",
                )
            }
            | {"sequences": scale.sequences}
            | {f"{name} at {epoch}": run["rows"][epoch][name] for epoch in EPOCHS for name in "pa"}
            for run in runs
        ],
        "epochs": [{"seed": run["seed"], **row} for run in runs[:DRAWN] for row in run["rows"]],
        "readings": read,
        "stages": [row for one in staged for row in one],
        "others": sets,
        "exact": handmade_scores(),
        "models": [_summary(name, one) for name, one in found.items()],
        "order": [row for name, one in found.items() for row in _order(name, one)],
        "ablation": [row for one in found.values() for row in one["ablation"]],
        "heads": [row for one in found.values() for row in one["heads"]],
        "missing": missing,
    }


def _summary(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """A model in one row."""
    best = max(found["heads"], key=lambda row: row["prefix"])
    return {
        "model": name,
        "kind": found["kind"],
        "heads": len(found["heads"]),
        "induction heads": len(found["above"]["prefix"]),
        "largest prefix": best["prefix"],
        "best": Labels(row["stack"] for row in found["heads"])(location_of(best)),
        "largest prefix, once": max(row["prefix, once"] for row in found["heads"]),
        "duplicate-token heads": len(found["above"]["duplicate"]),
        "previous-token heads": len(found["above"]["previous"]),
    }


def _order(name: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the first heads of each kind stand, in the stacks with induction."""
    rows = []
    for stack in dict.fromkeys(at[0] for at in found["above"]["prefix"]):
        induction, previous = (
            _layers(found["above"][score], stack) for score in ("prefix", "previous")
        )
        rows.append(
            {
                "model": name,
                "stack": stack,
                "layers": 1 + max(r["layer"] for r in found["heads"] if r["stack"] == stack),
                "first previous-token layer": min(previous, default=None),
                "first induction layer": min(induction),
                "last induction layer": max(induction),
                "previous-token heads before": sum(x < min(induction) for x in previous),
            }
        )
    return rows


def _layers(heads: Sequence[Sequence[Any]], stack: str) -> list[int]:
    return [int(layer) for own, layer, _ in heads if own == stack]


SHOWN = (
    ("Published beside measured: p of the true parents, and a", "curve"),
    ("Epochs at which each number is half way, by seed", "runs"),
    ("Other readings of what the paper leaves open", "readings"),
    ("Training in stages, one parameter after the other", "stages"),
    ("Other true parents", "others"),
    ("The detector on heads made by hand", "exact"),
    ("Induction, duplicate-token and previous-token heads of loaded models", "models"),
    ("Layers of the first previous-token and induction heads", "order"),
    ("Mean prefix score of induction heads without previous-token heads", "ablation"),
)
MAIN_COLUMNS = {
    "runs": ("seed", "p > .99", "least p after epoch 10", "p", "copies", "a", "seconds"),
    "ablation": ("model", "heads", "number", "prefix of induction heads"),
}
paper = Paper(
    "induction",
    "Unveiling induction heads (arXiv 2409.10559)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    (
        "an epoch is one step of plain gradient descent at rate 1 on all sequences, drawn once",
        (
            "the loss takes the output as logits, and the empty set is among the sets: this"
            " reading was chosen because it meets the published figures"
        ),
    ),
    columns=MAIN_COLUMNS,
    models=("models",),
    kinds=("encoder", "decoder", "encoder-decoder"),
)
