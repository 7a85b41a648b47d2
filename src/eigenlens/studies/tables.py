"""What a study found, as rows of numbers for tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ..captures import Head, Site
from ..run.result import TitledTable
from ..spectra.centring import CENTRINGS
from ..spectra.dimension import SHARES
from ..spectra.sentences import ALL_ROWS, masked_rows
from ..spectra.spectrum import Spectrum

if TYPE_CHECKING:
    from .result import Study


def summary_numbers(study: Study) -> list[dict[str, Any]]:
    """One row per analysis, centring and stack: medians over heads.

    A dimension beyond the components kept is None.
    """
    rows = []
    for analysis in ("rows", "matrices"):
        for centring in CENTRINGS:
            chosen = study.spectra.select(analysis=analysis, level="head", centring=centring)
            for stack in sorted({s.stack for s in chosen}):
                heads = chosen.select(stack=stack)
                kept, dimensions = len(heads.spectra[0].eigenvalues), heads.spectra[0].dimensions
                row: dict[str, Any] = {"analysis": analysis, "centring": centring, "stack": stack}
                row |= {"dimensions": dimensions, "kept": kept}
                for share in SHARES:
                    middle = float(
                        np.median(
                            [np.inf if (d := s.dimension(share)) is None else d for s in heads]
                        )
                    )
                    row[f"held_out_dimension_{round(share * 100)}"] = (
                        None if np.isinf(middle) else middle
                    )
                if valid := [s.valid_rows for s in heads if s.valid_rows is not None]:
                    middle = float(
                        np.median([np.inf if (d := v.dimension(0.9)) is None else d for v in valid])
                    )
                    row["valid_rows_held_out_dimension_90"] = None if np.isinf(middle) else middle
                row["effective_rank"] = float(np.median([s.effective_rank for s in heads]))
                row["rank"] = rank = min(16, kept)
                for name in ("held_out", "low", "high"):
                    middle = float(np.median([getattr(s, name)[rank - 1] for s in heads]))
                    row[f"{name}_at_rank"] = None if np.isnan(middle) else middle
                rows.append(row)
    return rows


def summary_rows(study: Study) -> list[dict[str, Any]]:
    """The same in words that fit a terminal: `>64` beyond what was kept, intervals in brackets."""
    rows, masked = [], masked_rows(study.spectra)
    for numbers in summary_numbers(study):
        row = {
            "analysis": numbers["analysis"],
            "centring": numbers["centring"],
            "stack": numbers["stack"],
        }
        row["dimensions"] = numbers["dimensions"]
        for share in SHARES:
            found = numbers[f"held_out_dimension_{round(share * 100)}"]
            row[f"{share:.0%}"] = f">{numbers['kept']}" if found is None else f"{found:g}"
        if masked:
            found = numbers.get("valid_rows_held_out_dimension_90")
            row["90%, valid rows"] = "–" if found is None else f"{found:g}"
        row["effective rank"] = f"{numbers['effective_rank']:.1f}"
        held, low, high = (numbers[f"{name}_at_rank"] for name in ("held_out", "low", "high"))
        interval = "" if low is None else f" ({low:.2f}–{high:.2f})"
        row[f"held out at {numbers['rank']}"] = (
            "nan" if held is None else f"{held:.2f}"
        ) + interval
        rows.append(row)
    return rows


def layer_rows(
    study: Study,
    analysis: str = "rows",
    centring: str = "centred",
    share: float = 0.9,
    valid: bool = False,
) -> list[dict[str, Any]]:
    """One row per layer: the held-out dimension of each of its heads.

    Over all rows or, where a mask cuts them, the `valid`.
    """
    heads = study.spectra.select(analysis=analysis, level="head", centring=centring)
    layers: dict[Site, list[Spectrum]] = {}
    for spectrum in heads:
        if isinstance(spectrum.at, Head):
            layers.setdefault(spectrum.at.site, []).append(spectrum)
    rows = []
    for site, members in layers.items():
        row: dict[str, Any] = asdict(site)
        for s in members:
            found = (s.valid_rows or s if valid else s).dimension(share)
            row[f"H{s.head}"] = f">{len(s.eigenvalues)}" if found is None else str(found)
        rows.append(row)
    return rows


def depth_rows(study: Study) -> list[dict[str, Any]]:
    """One row per depth, over all tokens.

    0 is what goes into the first block, which has no pattern yet.
    """
    names = {
        "residual": "residual",
        "effective_rank": "effective rank",
        "stable_rank": "stable rank",
        "cosine": "cosine",
        "high_frequency": "high frequencies",
        "entropy": "entropy",
        "singular_ratio": "σ₂/σ₁",
    }
    rows = study.depth.table_in_words(list(names))
    return [
        {"stack": row["stack"], "depth": row["depth"], **{names[m]: row[m] for m in names}}
        for row in rows
    ]


def study_tables(study: Study) -> list[TitledTable]:
    """What a terminal prints of a study."""
    kinds = {s.analysis for s in study.spectra}  # the spectra first: a damaged study shows nothing
    tables = []
    if kinds:
        title = "Dimensions that hold a share of the held-out variance, median of the heads"
        tables.append(TitledTable(title, summary_rows(study)))
    if "rows" in kinds:
        masked = masked_rows(study.spectra)
        title = "Dimensions of each head's rows for 90 %, centred, held out"
        which = ", over all rows" if masked else ""
        tables.append(TitledTable(f"{title}{which}", layer_rows(study)))
        if masked:
            below = f"{ALL_ROWS[0].upper()}{ALL_ROWS[1:]}."
            title = "The same over valid rows only"
            tables.append(TitledTable(title, layer_rows(study, valid=True), below))
    if "rows" in kinds and len({site.keys for site in study.sites.values()}) == 1:
        tables.append(
            TitledTable("Overlap of heads' row eigenspaces, centred", overlap_rows(study))
        )
    if study.has("depth"):
        measured = max((number.number for number in study.depth.numbers), default=0)
        title = f"Tokens and patterns along depth, mean of {measured} inputs"
        tables.append(TitledTable(title, depth_rows(study)))
    if study.diagnostics.found:
        title = "Diagnostics, the first number of each, mean of a layer's heads"
        tables.append(TitledTable(title, study.diagnostics.rows()))
    return tables


def overlap_rows(study: Study) -> list[dict[str, Any]]:
    """How far heads share their leading directions, at a small rank and at a larger one."""
    most = min(16, study.length - 1)
    found = [study.overlap(rank=r).summary() for r in sorted({min(4, most), most})]
    return [
        {key: value for key, value in row.items() if key not in {"left", "right", "best"}}
        for row in found
    ]
