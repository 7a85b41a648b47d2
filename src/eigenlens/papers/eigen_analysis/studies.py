"""The studies of a run, and the rows of the paper's tables that are read from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data import datasets
from ...errors import EigenlensError
from ...estimators.candidates import BUDGETS
from ...models.load import load
from ...plans import plan
from ...run.parts import Parts
from ...run.progress import Progress
from ...spectra.centring import CENTRINGS
from ...stats.within import SHARES
from ...studies import Study, compare, study
from .claims import COMPONENTS, RANK, RANKS
from .reconstruction import error_table

if TYPE_CHECKING:
    from . import Scale

ESTIMATORS = ("mean", "rows-lmmse", "key-pca", "joint", "adaptive")
"""Those whose errors stand beside the paper's estimator; the mean makes every budget possible."""


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
            only=("rows", "matrices", "moments"),
            rank=COMPONENTS[-1],
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
    """Dimensions of the median head's rows, and what 64 components hold of matrices, held out.

    The dimensions are given for every share of the variance, and for centred rows as shares of n.
    """
    row: dict[str, Any] = {"model": model_name(made), "data": made.facts.data.name}
    heads = made.spectra.select(analysis="rows", level="head", centring="centred")
    size = heads.spectra[0].dimensions
    row |= {"inputs": made.facts.inputs, "heads": len(heads), "n": size}
    for centring in CENTRINGS:
        for share in SHARES:
            chosen = made.spectra.select(analysis="rows", level="head", centring=centring)
            row[f"{centring} {share:.0%}"] = float(
                np.median([s.dimension(share) or size for s in chosen])
            )
    row["share of n"] = row["centred 90%"] / size
    row |= {f"share of n, {share:.0%}": row[f"centred {share:.0%}"] / size for share in SHARES}
    row |= {
        "pairs": None,
        "components": None,
        "of matrices": None,
        "in the sample": None,
        "matrices": None,
    }
    if whole := matrix_rows(made):
        last = whole[-1]
        row |= {
            "pairs": last["pairs"],
            "components": last["components"],
            "of matrices": last["held out"],
            "in the sample": last["in the sample"],
            "matrices": last["inputs"],
        }
    return row


def matrix_rows(made: Study) -> list[dict[str, Any]]:
    """What 1, 2, 4 … 64 components hold of the median head's whole matrices."""
    whole = made.spectra.select(analysis="matrices", level="head", centring="centred")
    if not len(whole):
        return []
    most = min(COMPONENTS[-1], *(len(s.held_out) for s in whole))
    return [
        {
            "model": model_name(made),
            "pairs": whole.spectra[0].dimensions,
            "inputs": whole.spectra[0].samples,
            "components": kept,
            "held out": float(np.median([s.held_out[kept - 1] for s in whole])),
            "in the sample": float(np.median([s.explained[kept - 1] for s in whole])),
        }
        for kept in sorted({min(kept, most) for kept in COMPONENTS})
    ]


def overlap_rows(made: Study) -> list[dict[str, Any]]:
    """How much the eigenspaces of a model's heads overlap, within layers and across them."""
    found = [(rank, made.overlap(rank=rank)) for rank in ranks_of(made)]
    return [
        {
            "model": model_name(made),
            "masked": is_masked(made),
            "rank": rank,
            "chance": one.chance,
            "within layers": one.within_layers,
            "across layers": one.across_layers,
            "times chance": one.across_layers / one.chance,
        }
        for rank, one in found
    ]


def ranks_of(made: Study) -> list[int]:
    """The ranks that are compared: at those above n/8 three times chance is hardly possible."""
    n = made.spectra.select(analysis="rows", level="head").spectra[0].dimensions
    return [rank for rank in RANKS if 8 * rank <= max(n, 8 * RANK)]


def between_rows(left: Study, right: Study) -> list[dict[str, Any]]:
    """How much the eigenspaces of two models' heads overlap on the same texts."""
    names = {"left": model_name(left), "right": model_name(right)}
    kept = ("overlap", "best_partner", "chance", "captured_right_by_left", "captured_left_by_right")
    return [
        {
            **names,
            "masked": is_masked(left) or is_masked(right),
            "rank": row["rank"],
            **{key: row[key] for key in kept},
            "times chance": row["overlap"] / row["chance"],
        }
        for row in compare(left, right, ranks=ranks_of(left)).rows()
        if row["level"] == "head"
    ]


def model_name(made: Study) -> str:
    return made.facts.model.name


def is_masked(made: Study) -> bool:
    """Whether the rows of a study are masked.

    Early keys of a causal model are in more rows than late ones, so its eigenspaces agree by that
    alone.
    """
    return any(site.mask != "full" for site in made.sites.values())


def first_without_mask(studies: Sequence[Study]) -> Study | None:
    """The model whose scores are estimated: every key is in every row of it."""
    return next((made for made in studies if not is_masked(made)), None)


def reconstruction_rows(made: Study | None) -> list[dict[str, Any]]:
    """The errors of reconstruction from a part of the keys, beside that of the best basis.

    `best of rank m` is what the m leading components of the rows leave of held-out rows, all of
    whose scores are known: with m keys computed no linear estimate does better but by chance.
    """
    if made is None:
        return []
    spectra = made.spectra.select(analysis="rows", level="head", centring="centred")
    rows = []
    for row in error_table(made.row_sums("fit"), made.row_sums("held")):
        best = float(np.median([1 - s.held_out[row["keys"] - 1] for s in spectra]))
        rows.append({"model": model_name(made), **row, "best of rank m": best})
    return rows


def estimator_rows(made: Study | None, inputs: int, seed: int) -> list[dict[str, Any]]:
    """What other estimators leave of the same model's scores, on documents held out from the study.

    The budget is a share of the pairs for an estimator that computes some of them, of the
    dimensions of queries and keys for one that computes all pairs in fewer, and of the
    multiply-adds for the adaptive one.
    """
    if made is None:
        return []
    found = plan(made, budget=0.5, estimators=ESTIMATORS, max_inputs=inputs, seed=seed)
    kept = ("pairs", "work", "total_variation", "score_error", "score_error_median")
    return [
        {
            "model": model_name(made),
            "estimator": row["estimator"],
            "budget": row["budget"],
            **{key: row[key] for key in kept},
        }
        for row in found.curve
        if row["budget"] in BUDGETS
    ]
