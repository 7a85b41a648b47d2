"""The studies of a run, and the rows of the paper's tables that are read from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data import datasets
from ...errors import EigenlensError
from ...models.load import load
from ...run.parts import Parts
from ...run.progress import Progress
from ...spectra.centring import CENTRINGS
from ...studies import Study, compare, study
from .claims import COMPONENTS, RANK
from .reconstruction import error_table

if TYPE_CHECKING:
    from . import Scale


def make_studies(scale: Scale, parts: Parts, seed: int, progress: Progress) -> list[Study]:
    """One study per model; a model that cannot be loaded is left out, and a note says why."""
    found, missing = [], []
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
            missing.append(f"{name} was left out: {error}")
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
    if not found:
        raise EigenlensError(f"none of the models can be loaded: {'; '.join(missing)}")
    partial = [
        f"{model_name(made)}: {note}"
        for made in found
        for note in made.notes
        if " is partial: " in note
    ]
    parts.notes += [*missing, *partial]
    return found


def dimension_row(made: Study) -> dict[str, Any]:
    """Dimensions of the median head's rows, and what 64 components hold of matrices, held out."""
    row: dict[str, Any] = {"model": model_name(made), "data": made.facts.data.name}
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


def overlap_row(made: Study) -> dict[str, Any]:
    """How much the eigenspaces of a model's heads overlap, within layers and across them."""
    found = made.overlap(rank=RANK)
    return {
        "model": model_name(made),
        "masked": is_masked(made),
        "rank": RANK,
        "chance": found.chance,
        "within layers": found.within_layers,
        "across layers": found.across_layers,
        "times chance": found.across_layers / found.chance,
    }


def between_row(left: Study, right: Study) -> dict[str, Any]:
    """How much the eigenspaces of two models' heads overlap on the same texts."""
    row = next(r for r in compare(left, right, ranks=[RANK]).rows() if r["level"] == "head")
    names = {"left": model_name(left), "right": model_name(right)}
    kept = ("overlap", "best_partner", "chance", "captured_right_by_left", "captured_left_by_right")
    return {
        **names,
        "masked": is_masked(left) or is_masked(right),
        "rank": RANK,
        **{key: row[key] for key in kept},
        "times chance": row["overlap"] / row["chance"],
    }


def model_name(made: Study) -> str:
    return made.facts.model.name


def is_masked(made: Study) -> bool:
    """Whether the rows of a study are masked.

    Early keys of a causal model are in more rows than late ones, so its eigenspaces agree by that
    alone.
    """
    return any(site.mask != "full" for site in made.sites.values())


def reconstruction_rows(studies: Sequence[Study]) -> list[dict[str, Any]]:
    """The errors of reconstruction in the first model whose rows are not masked."""
    made = next((s for s in studies if not is_masked(s)), None)
    if made is None:
        return []
    rows = error_table(made.row_sums("fit"), made.row_sums("held"))
    return [{"model": model_name(made), **row} for row in rows]
