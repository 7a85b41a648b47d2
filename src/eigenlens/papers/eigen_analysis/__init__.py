"""Eigen analysis of self-attention, and its reconstruction from partial computation (arXiv
2106.08823).

The paper's exact settings and figures were not available. What is published is therefore a
statement, and each verdict rests on a criterion of ours, which its note names. The bounds on
dimension, overlap and error were set before they were measured. The measure of training (what is
kept of full attention's gain) was chosen after a toy run, in which staying within 5 % of the full
model's loss turned out to be met trivially.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ...data import datasets
from ...data.needs import check_named, read_by
from ...errors import EigenlensError
from ...models.load import load
from ...run.parts import Parts
from ...run.progress import Here, Progress, silent
from ...spectra.centring import CENTRINGS
from ...studies import Study, compare, study
from ..claims import Reproduction
from . import training
from .claims import COMPONENTS, RANK, claims_of
from .reconstruction import error_table
from .training_table import summary

PAPER = "eigen-analysis"
SHOWN = (
    ("Training: held-out loss in nats a masked byte; costs relative to full attention", "training"),
)
TITLE = (
    "Eigen analysis of self-attention and its reconstruction from partial computation (arXiv"
    " 2106.08823)"
)


@dataclass(frozen=True)
class Scale:
    """Which models, how many inputs of which length, and which training experiment."""

    models: tuple[str, ...]
    text: str
    length: int
    inputs: int
    experiment: training.Experiment


FULL = Scale(
    ("minilm", "distilbert-gec", "flan-t5-small", "stories15m", "smollm2", "dinov2-small"),
    "wikipedia",
    128,
    400,
    training.FULL,
)
QUICK = Scale(("minilm", "distilbert-gec"), "python-docs", 64, 48, training.QUICK)


def check(quick: bool) -> None:
    """Refuse a run whose models and data need libraries that are not here."""
    check_named(read_by(QUICK if quick else FULL), f"the paper {PAPER}")


def reproduce(
    quick: bool = False,
    out: Path = Path("eigen-analysis"),
    seed: int = 0,
    progress: Progress = silent,
    *,
    resume: bool = False,
    force: bool = False,
    scale: Scale | None = None,
) -> Reproduction:
    """Measure every claim; what is finished is kept in `out`, and a run with `resume` goes on from
    there.
    """
    scale = scale or (QUICK if quick else FULL)
    check_named(read_by(scale), f"the paper {PAPER}")
    request = {
        "paper": PAPER,
        "models": list(scale.models),
        "text": scale.text,
        "length": scale.length,
        "inputs": scale.inputs,
        "seed": seed,
        "training": scale.experiment.record(),
    }
    notes = ["this is a miniature; verdicts of the full run can differ"] if quick else []
    with Parts.held(out, request, resume=resume, force=force) as parts:
        return _measured(scale, parts, request, seed, Here(progress), notes)


def _measured(
    scale: Scale,
    parts: Parts,
    request: dict[str, Any],
    seed: int,
    progress: Progress,
    notes: list[str],
) -> Reproduction:
    studies = _studies(scale, parts, seed, progress, notes)
    texts = [s for s in studies if s.facts.model.kind != "vision"]
    pairs = list(combinations(texts, 2))
    tables = {
        "dimensions": [
            parts.part(f"dimensions/{_name(s)}", partial(_dimensions, s)) for s in studies
        ],
        "overlap": [parts.part(f"overlap/{_name(s)}", partial(_overlap, s)) for s in studies],
        "between models": [
            parts.part(f"between/{_name(a)}-{_name(b)}", partial(_between, a, b)) for a, b in pairs
        ],
        "reconstruction": parts.part("reconstruction", partial(_reconstruction, studies)),
    }
    runs, times = training.measure(scale.experiment, parts, progress)
    tables |= {"training": summary(runs, times), "training runs": runs}
    done = Reproduction(PAPER, TITLE, claims_of(tables), tables, tuple(notes), request, SHOWN)
    parts.write("reproduction", done.record())
    return done


def _studies(
    scale: Scale, parts: Parts, seed: int, progress: Progress, notes: list[str]
) -> list[Study]:
    found = []
    for name in scale.models:
        folder = parts.folder / "studies" / name
        if (folder / "study.json").is_file():
            found.append(Study.open(folder))
            continue
        try:
            model = load(name)
            if model.kind != "vision":
                next(iter(datasets.text(scale.text)))
        except EigenlensError as error:
            notes.append(f"{name} was left out: {error}")
            continue
        vision = model.kind == "vision"
        made = study(
            model,
            None if vision else scale.text,
            folder,
            max_length=None if vision else scale.length,
            max_inputs=scale.inputs,
            only=("rows", "matrices"),
            rank=COMPONENTS,
            seed=seed,
            resume=True,
            progress=progress,
        )
        found.append(made)
    notes += [
        f"{_name(made)}: {note}" for made in found for note in made.notes if " is partial: " in note
    ]
    if not found:
        raise EigenlensError(f"none of the models can be had: {'; '.join(notes)}")
    return found


def _dimensions(made: Study) -> dict[str, Any]:
    """Dimensions of the median head's rows, and what 64 components hold of whole matrices, held
    out.
    """
    row: dict[str, Any] = {"model": _name(made), "data": made.facts.data.name}
    heads = made.spectra.select(analysis="rows", level="head", centring="centred")
    size = heads.spectra[0].dimensions
    row |= {"inputs": made.facts.inputs, "heads": len(heads), "n": size}
    for centring in CENTRINGS:
        for share in (0.5, 0.9):
            chosen = made.spectra.select(analysis="rows", level="head", centring=centring)
            row[f"{centring} {share:.0%}"] = float(
                np.median([s.dimension(share) or size for s in chosen])
            )
    row["share of n"] = row["centred 90%"] / size
    whole = made.spectra.select(analysis="matrices", level="head", centring="centred")
    row |= {
        "pairs": None,
        "components": None,
        "of matrices": None,
        "in the sample": None,
        "matrices": None,
    }
    if len(whole):
        kept = min(COMPONENTS, *(len(s.held_out) for s in whole))
        row |= {
            "pairs": whole.spectra[0].dimensions,
            "components": kept,
            "of matrices": float(np.median([s.held_out[kept - 1] for s in whole])),
            "in the sample": float(np.median([s.explained[kept - 1] for s in whole])),
            "matrices": whole.spectra[0].samples,
        }
    return row


def _overlap(made: Study) -> dict[str, Any]:
    found = made.overlap(rank=RANK)
    return {
        "model": _name(made),
        "masked": _masked(made),
        "rank": RANK,
        "chance": found.chance,
        "within layers": found.within_layers,
        "across layers": found.across_layers,
        "times chance": found.across_layers / found.chance,
    }


def _between(left: Study, right: Study) -> dict[str, Any]:
    row = next(r for r in compare(left, right, ranks=[RANK]).rows() if r["level"] == "head")
    names = {"left": _name(left), "right": _name(right)}
    kept = ("overlap", "best_partner", "chance", "captured_right_by_left", "captured_left_by_right")
    return {
        **names,
        "masked": _masked(left) or _masked(right),
        "rank": RANK,
        **{key: row[key] for key in kept},
        "times chance": row["overlap"] / row["chance"],
    }


def _name(made: Study) -> str:
    return made.facts.model.name


def _masked(made: Study) -> bool:
    """Early keys of a causal model are in more rows than late ones: its eigenspaces agree by that
    alone.
    """
    return any(site["mask"] != "full" for site in made.sites.values())


def _reconstruction(studies: Sequence[Study]) -> list[dict[str, Any]]:
    """Of the first model whose rows are not masked."""
    made = next((s for s in studies if not _masked(s)), None)
    if made is None:
        return []
    rows = error_table(made.row_sums("fit"), made.row_sums("held"))
    return [{"model": _name(made), **row} for row in rows]
