"""What a study found, as rows of numbers for tables."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..captures import Head, Site
from ..display import percent
from ..run.result import Rows, TitledTable
from ..spectra.centring import CENTRINGS
from ..spectra.sentences import ALL_ROWS, masked_rows
from ..spectra.spectrum import Spectrum
from ..spectra.within import IN_WORDS
from ..stats.within import SHARES
from .side_by_side import dimension_tables

if TYPE_CHECKING:
    from .result import Study

HEADS_PER_TABLE = 16
"""Heads side by side that a line has room for."""
DEPTH_COLUMNS = ("depth", "residual", "effective rank", "cosine", "entropy", "σ₂/σ₁")


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
            row[percent(share)] = f">{numbers['kept']}" if found is None else f"{found:g}"
        if masked:
            found = numbers.get("valid_rows_held_out_dimension_90")
            row["90 %, valid rows"] = "–" if found is None else f"{found:g}"
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
    rows = []
    for site, members in _heads_by_layer(study, analysis, centring).items():
        row: dict[str, Any] = asdict(site)
        for s in members:
            found = (s.valid_rows or s if valid else s).dimension(share)
            row[f"H{s.head}"] = f">{len(s.eigenvalues)}" if found is None else str(found)
        rows.append(row)
    return rows


def layer_summaries(study: Study, centring: str = "centred", share: float = 0.9) -> Rows:
    """One row per layer: its heads of least, median and most held-out dimensions."""
    rows = []
    for site, members in _heads_by_layer(study, "rows", centring).items():
        found = [(s.dimension(share) or np.inf, s.head) for s in members]
        (least, first), (most, last) = min(found), max(found)
        rows.append(
            {
                **asdict(site),
                "heads": len(found),
                "least": f"{least:g} (H{first})",
                "median": f"{np.median([number for number, _ in found]):g}",
                "most": f"{most:g} (H{last})",
            }
        )
    return rows


def _heads_by_layer(study: Study, analysis: str, centring: str) -> dict[Site, list[Spectrum]]:
    """The spectra of each layer's heads."""
    layers: dict[Site, list[Spectrum]] = {}
    for spectrum in study.spectra.select(analysis=analysis, level="head", centring=centring):
        if isinstance(spectrum.at, Head):
            layers.setdefault(spectrum.at.site, []).append(spectrum)
    return layers


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
    stacks = len({site.stack for site in study.sites})
    tables = dimension_tables(study)
    if study.has("within"):
        tables += _within_tables(study)
    if kinds:
        title = "Dimensions that hold a share of the held-out variance, median over heads"
        rows = summary_rows(study)
        main = [name for name in rows[0] if name not in ("stack", "95 %")[stacks > 1 :]]
        tables.append(TitledTable(title, rows, columns=main, long=study.has("within")))
    if "rows" in kinds:
        tables += _head_tables(study)
    if "rows" in kinds and len({site.keys for site in study.sites.values()}) == 1:
        title = "How far heads share the leading directions of their rows (centred)"
        tables.append(TitledTable(title, overlap_rows(study), long=True))
    if study.has("depth"):
        measured = max((number.number for number in study.depth.numbers), default=0)
        title = f"Tokens and patterns along depth, mean over {measured} inputs"
        rows = depth_rows(study)
        main = ["stack", *DEPTH_COLUMNS][stacks == 1 :]
        tables.append(TitledTable(title, rows, columns=main, long=bool(kinds)))
    if study.diagnostics.found:
        title = "Diagnostics per layer: the first number of each, mean over the layer's heads"
        rows = study.diagnostics.rows()
        tables.append(TitledTable(title, rows, long=bool(kinds) or study.has("depth")))
    return tables


def _within_tables(study: Study) -> list[TitledTable]:
    """Growth with length, and the components of every head."""
    title = "Components of one input's scores by its tokens, median over heads"
    growth = [
        {
            "of": IN_WORDS[row["what"]],
            "tokens": row["tokens"],
            **{percent(share): f"{row[f'dimension_{round(share * 100)}']:g}" for share in SHARES},
            "90 %, most heads": f"{row['dimension_90_low']:g}–{row['dimension_90_high']:g}",
            "inputs": row["inputs"],
        }
        for row in study.within.growth()
    ]
    lengths = study.within.lengths
    below = "Most heads: from the 10 % with the fewest to the 10 % with the most."
    if len(lengths) > 1:
        below += " Fewer tokens are the first of longer inputs."
    layers: dict[Site, dict[str, Any]] = {}
    for one in study.within.whole("centred"):
        row = layers.setdefault(one.at.site, asdict(one.at.site))
        row[f"H{one.head}"] = str(one.dimension(0.9))
    heads = "Components for 90 % of the energy of one input's scores (row-centred), median input"
    return [
        TitledTable(title, growth, below, long=len(lengths) == 1),
        *_by_heads(heads, list(layers.values()), long=len(study.spectra) > 0),
    ]


def _head_tables(study: Study) -> list[TitledTable]:
    """Dimensions of each head; of wide models the range per layer, and the heads only in full."""
    masked = masked_rows(study.spectra)
    which = ", over all rows" if masked else ""
    title = f"Dimensions for 90 % of the held-out variance of each head's rows (centred{which})"
    wide = max(site.heads for site in study.sites.values()) > HEADS_PER_TABLE
    tables = []
    if wide:
        tables.append(TitledTable(title, layer_summaries(study)))
    tables += _by_heads(title, layer_rows(study), long=wide)
    if masked:
        below = f"{ALL_ROWS[0].upper()}{ALL_ROWS[1:]}."
        tables += _by_heads(
            "The same over valid rows only", layer_rows(study, valid=True), long=True, below=below
        )
    return tables


def _by_heads(title: str, rows: Rows, long: bool, below: str = "") -> list[TitledTable]:
    """A table of layers × heads, cut where it would be wider than a page."""
    heads = [name for name in max(rows, key=len) if name.startswith("H")]
    start = [name for name in rows[0] if name not in heads]
    tables = []
    for first in range(0, len(heads), HEADS_PER_TABLE):
        some = heads[first : first + HEADS_PER_TABLE]
        part = [{name: row.get(name, "") for name in (*start, *some)} for row in rows]
        more = f", heads {some[0]} to {some[-1]}" if len(heads) > HEADS_PER_TABLE else ""
        tables.append(TitledTable(f"{title}{more}", part, long=long))
    return [*tables[:-1], replace(tables[-1], below=below)]


def overlap_rows(study: Study) -> list[dict[str, Any]]:
    """How far heads share their leading directions, at a small rank and at a larger one."""
    most = min(16, study.length - 1)
    found = [study.overlap(rank=r).summary() for r in sorted({min(4, most), most})]
    return [
        {key: value for key, value in row.items() if key not in {"left", "right", "best"}}
        for row in found
    ]
