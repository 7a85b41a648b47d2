"""Drawing the pictures of a study into a folder."""

from __future__ import annotations

from pathlib import Path

import torch

from ..captures import Site
from ..run.charts import save_charts
from ..spectra.plots import dimension_map, map_pictures, overlap_map, spectrum_curves
from .result import Study
from .side_by_side_chart import dimension_chart


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw what the study holds into `folder`, and return the files.

    Every picture is a PNG, and an SVG unless it has ten thousand cells.
    """
    charts = {}
    has = {s.analysis for s in study.spectra}
    for analysis in sorted(has):
        charts[f"dimensions-{analysis}"] = dimension_map(study.spectra, analysis=analysis)
        heads = study.spectra.select(analysis=analysis, level="head", centring="centred")
        charts[f"spectra-{analysis}"] = spectrum_curves(heads)
    if "rows" in has and len({site.keys for site in study.sites.values()}) == 1:
        rank = min(16, study.length - 1)
        charts["overlap-heads"] = overlap_map(study.overlap(rank=rank))
        charts["overlap-layers"] = overlap_map(study.overlap(rank=rank, level="layer"))
    if "matrices" in has:
        heads = study.spectra.select(analysis="matrices", level="head", centring="centred")
        leader = max(heads, key=lambda s: s.held_out[min(15, len(s.held_out) - 1)])
        parts = study.matrix_results[Site(leader.stack, leader.layer or 0)]
        maps = [parts["mean"][leader.head], *parts["vectors"][leader.head, :7]]
        titles = [
            f"{study.labels(leader.at)}: mean score",
            *(f"eigenvector {i + 1}" for i in range(len(maps) - 1)),
        ]
        charts["eigenvectors-matrices"] = map_pictures(torch.stack(maps).numpy(), titles)
    if study.has("within") and len(study.within):
        charts["within"] = study.within.plot()
        charts["side-by-side"] = dimension_chart(study)
    if study.has("depth") and study.depth.numbers:
        charts["depth"] = study.depth.plot()
    for finding in study.diagnostics.found:
        charts[f"diagnostic-{finding.name}"] = finding.plot()
    return save_charts(charts, folder, only_png={"eigenvectors-matrices"})
