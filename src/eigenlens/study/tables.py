"""What a study found, as rows of numbers for tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..spectra.centring import CENTRINGS
from ..spectra.dimension import SHARES
from ..spectra.sentences import dimension_sentence, median_or_beyond
from ..spectra.spectrum import Spectra, Spectrum

if TYPE_CHECKING:
    from .study import Study


def summary_rows(study: Study) -> list[dict[str, Any]]:
    """One row an analysis, centring and stack: medians over heads of the held-out dimensions."""
    rows = []
    for analysis in ("rows", "matrices"):
        for centring in CENTRINGS:
            chosen = study.spectra.select(analysis=analysis, level="head", centring=centring)
            for stack in sorted({s.stack for s in chosen}):
                heads = chosen.select(stack=stack)
                most = len(heads.spectra[0].eigenvalues)
                row: dict[str, Any] = {
                    "analysis": analysis,
                    "centring": centring,
                    "stack": stack,
                    "of": heads.spectra[0].dimensions,
                }
                for share in SHARES:
                    row[f"{share:.0%}"] = median_or_beyond((s.dimension(share) for s in heads), most)
                row["effective rank"] = f"{np.median([s.effective_rank for s in heads]):.1f}"
                rank = min(16, most)
                row[f"held out at {rank}"] = _interval(heads, rank)
                rows.append(row)
    return rows


def _interval(heads: Spectra, rank: int) -> str:
    values = {name: float(np.median([getattr(s, name)[rank - 1] for s in heads])) for name in ("held_out", "low", "high")}
    if np.isnan(values["low"]):
        return f"{values['held_out']:.2f}"
    return f"{values['held_out']:.2f} ({values['low']:.2f}–{values['high']:.2f})"


def layer_rows(study: Study, analysis: str = "rows", centring: str = "centred", share: float = 0.9) -> list[dict[str, Any]]:
    """One row a layer: the held-out dimension of each of its heads."""
    heads = study.spectra.select(analysis=analysis, level="head", centring=centring)
    layers: dict[tuple[str, int | None], list[Spectrum]] = {}
    for spectrum in heads:
        layers.setdefault((spectrum.stack, spectrum.layer), []).append(spectrum)
    rows = []
    for (stack, layer), members in layers.items():
        row: dict[str, Any] = {"stack": stack, "layer": layer}
        for s in members:
            found = s.dimension(share)
            row[str(s.head)] = f">{len(s.eigenvalues)}" if found is None else str(found)
        rows.append(row)
    return rows


def depth_rows(study: Study) -> list[dict[str, Any]]:
    """One row a depth, over all tokens: 0 is what goes into the first block, with no pattern behind it yet."""
    names = {
        "residual": "residual", "effective_rank": "effective rank", "stable_rank": "stable rank", "cosine": "cosine",
        "high_frequency": "high frequencies", "entropy": "entropy", "singular_ratio": "σ₂/σ₁",
    }  # fmt: skip
    rows = study.depth.table(list(names))
    return [{"stack": row["stack"], "depth": row["depth"], **{names[m]: row[m] for m in names}} for row in rows]


def sentence(study: Study) -> str:
    """What this study says, in one sentence made from its numbers; nothing where it has no spectra."""
    return dimension_sentence(study.spectra)
