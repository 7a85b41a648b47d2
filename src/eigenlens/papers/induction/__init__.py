"""Unveiling induction heads: provable training dynamics and feature learning in transformers (arXiv 2409.10559).

A two-layer model learns to guess the next token of sequences whose Markov kernels it has never seen. Its training is followed
here parameter by parameter and compared with the published run. The heads it proves to arise are looked for in loaded models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import EigenlensError
from ...run.parts import Parts
from ...run.progress import Report
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .dynamics import curve, others, readings, stages, table
from .heads import exact, model_heads
from .pictures import charts


@dataclass(frozen=True)
class Scale:
    """`sequences` a training, `seeds` of it; `fewer` for readings, stages and other parents; `shrink` divides their epochs."""

    sequences: int
    seeds: int
    fewer: int
    shrink: int
    models: tuple[str, ...]
    inputs: int
    draws: int  # of heads that are ablated as a control


FULL = Scale(10_000, 5, 4000, 1, ("smollm2", "flan-t5-small", "stories15m", "minilm", "distilbert-gec"), 8, 5)
QUICK = Scale(2000, 2, 500, 5, ("smollm2", "minilm"), 2, 1)
OLDEST = 300
"""Epochs of the published run."""


def measure(scale: Scale, parts: Parts, seed: int, report: Report) -> Tables:
    runs = []
    for done, start in enumerate(range(seed, seed + scale.seeds)):
        report("training", done, scale.seeds)
        runs.append(parts.part(f"curve-{start}", partial(curve, scale.sequences, start, OLDEST)))
    report("other readings of the text", 0, 1)
    read = parts.part("readings", partial(readings, scale.fewer, seed, OLDEST))
    staged = []
    for done, start in enumerate(range(seed, seed + min(scale.seeds, 3))):
        report("stage after stage", done, min(scale.seeds, 3))
        staged += parts.part(f"stages-{start}", partial(stages, scale.fewer, start, scale.shrink))
    report("other parents", 0, 1)
    sets = parts.part("others", partial(others, scale.fewer, seed, OLDEST // scale.shrink))
    found, missing = _models(scale, parts, seed, report)
    return {
        "curve": table(runs),
        "runs": [{key: run[key] for key in ("seed", "p > .99", "least p after epoch 10", "p", "copies", "a", "seconds")}
                 | {"sequences": scale.sequences} for run in runs],
        "epochs": [{"seed": run["seed"], **row} for run in runs for row in run["rows"]],
        "readings": read,
        "stages": staged,
        "others": sets,
        "exact": exact(),
        "models": [_summary(name, one) for name, one in found.items()],
        "order": [row for name, one in found.items() for row in _order(name, one)],
        "ablation": [row for one in found.values() for row in one["ablation"]],
        "heads": [row for one in found.values() for row in one["heads"]],
        "missing": missing,
    }  # fmt: skip


def _models(
    scale: Scale, parts: Parts, seed: int, report: Report
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    found, missing = {}, []
    for done, name in enumerate(scale.models):
        report("heads of models", done, len(scale.models))
        try:
            found[name] = parts.part(f"models/{name}", partial(model_heads, name, scale.inputs, scale.draws, seed))
        except EigenlensError as error:
            missing.append({"model": name, "reason": str(error)})
    if not found:
        raise EigenlensError(f"none of the models can be had: {'; '.join(row['reason'] for row in missing)}")
    return found, missing


def _summary(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """A model in one row."""
    best = max(found["heads"], key=lambda row: row["prefix"])
    return {
        "model": name, "heads": len(found["heads"]), "induction heads": len(found["above"]["prefix"]),
        "largest prefix": best["prefix"], "best": f"{best['stack']}/{best['layer']}.{best['head']}",
        "largest prefix, once": max(row["prefix, once"] for row in found["heads"]),
        "duplicate-token heads": len(found["above"]["duplicate"]), "previous-token heads": len(found["above"]["previous"]),
    }  # fmt: skip


def _order(name: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the first heads of each kind stand, in the stacks with induction."""
    rows = []
    for stack in dict.fromkeys(place[0] for place in found["above"]["prefix"]):
        induction, previous = (_layers(found["above"][score], stack) for score in ("prefix", "previous"))
        rows.append(
            {"model": name, "stack": stack, "layers": 1 + max(r["layer"] for r in found["heads"] if r["stack"] == stack),
             "first previous-token layer": min(previous, default=None), "first induction layer": min(induction),
             "last induction layer": max(induction), "previous-token heads before": sum(x < min(induction) for x in previous)}
        )  # fmt: skip
    return rows


def _layers(places: Sequence[Sequence[Any]], stack: str) -> list[int]:
    return [int(place[1]) for place in places if place[0] == stack]


SHOWN = (
    ("Published beside measured: p of the true parents, and a", "curve"),
    ("When each number is half way, by seed", "runs"),
    ("What the text leaves open", "readings"),
    ("Stage after stage", "stages"),
    ("Other true parents", "others"),
    ("The detector on heads made by hand", "exact"),
    ("Heads of loaded models", "models"),
    ("Which come first", "order"),
    ("Induction without previous-token heads", "ablation"),
)
paper = Paper(
    "induction",
    "Unveiling induction heads (arXiv 2409.10559)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    ("an epoch is one step of plain gradient descent at rate 1 on all sequences, drawn once",
     "the loss takes the output as logits, and the empty set is among the sets: chosen since the published figures are met so"),
)  # fmt: skip
