"""The map of heads, and what the page shows of the one that is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from ..captures import Site, location_of
from ..diagnostics.roles import roles
from ..spectra.bases import Scope
from ..spectra.plots import block_means, explained_curve, heat_maps, vector_lines
from ..spectra.spectrum import counted
from ..studies.result import Study
from .figures import Arrays, Figure, figure
from .head_numbers import METRICS, head_numbers
from .results import Results
from .sentences import head_sentences

VECTORS = 4
"""How many leading eigenvectors of rows are drawn."""
MAPS = 3
"""How many leading eigenvectors of matrices are drawn, besides the mean."""
MAP_BYTES = 1_200_000
"""The bytes that all heat maps of a page may take; larger models get coarser maps."""


@dataclass(frozen=True)
class Heads:
    """The heads of one study, for the template and the script of the page.

    Their numbers are the table of all heads.
    """

    numbers: list[dict[str, Any]]
    metrics: dict[str, str]
    figures: list[Figure]
    step: int
    record: dict[str, Any]

    @property
    def grid(self) -> list[tuple[str, list[int]]]:
        """The layers by name, with the indices of their heads."""
        found: dict[str, list[int]] = {}
        for index, layer in enumerate(self.record["layers"]):
            found.setdefault(layer, []).append(index)
        return list(found.items())

    @property
    def labels(self) -> list[str]:
        """The text of each cell at the beginning."""
        name = next(iter(self.metrics), "")
        most = self.record["most"].get(name.partition("_")[0])
        values = [record.get(name) for record in self.numbers]
        beyond = f">{most}" if "dimension" in name else "–"
        return [beyond if value is None else f"{value:.3g}" for value in values]

    @property
    def names(self) -> list[str]:
        """The names of all heads, such as `L3H4`."""
        return self.record["names"]


def heads_of(study: Study, results: Results, key: str, arrays: Arrays) -> Heads:
    """Spectra, eigenvectors, mean maps and every number of every head."""
    numbers = head_numbers(study, results)
    known = METRICS | study.diagnostics.words("head")
    metrics = {
        name: title
        for name, title in known.items()
        if any(record.get(name) is not None for record in numbers)
    }
    share = MAP_BYTES / max(len(results.of(Study)), 1) / max(len(numbers) * (MAPS + 1), 1)
    side = int(np.clip(np.sqrt(share), 12, 64))
    sites, step = [], 1
    for site in study.ordered_sites:
        record, mine = _site(study, site, side, arrays)
        sites.append(record)
        step = max(step, mine)
    labels = study.labels
    what = "score" if study.of == "scores" else "pattern"
    titles = [f"mean {what}", *(f"eigenvector {i + 1}" for i in range(MAPS))]
    record = {
        "key": key,
        "sites": sites,
        "layers": [labels(Site(record["stack"], record["layer"])) for record in numbers],
        "names": [labels(location_of(record)) for record in numbers],
        "metrics": metrics,
        "maps": titles,
        "step": step,
        "sentences": head_sentences(numbers, roles(study.diagnostics)),
        "most": _kept(study),
    }
    return Heads(numbers, metrics, _figures(study, key, titles), step, record)


def _kept(study: Study) -> dict[str, int]:
    """The number of components that were kept, by analysis.

    It is shown as `>64` if a head needs more.
    """
    heads = study.spectra.select(level="head", centring="centred")
    return {s.analysis: len(s.eigenvalues) for s in heads}


def _figures(study: Study, key: str, titles: list[str]) -> list[Figure]:
    """The charts of the opened head; their rows come from the page's script."""
    names = {part: f"{key}-{part}" for part in ("spectrum", "vectors", "maps", "mean", "map")}
    first = next(iter(METRICS))
    data = {part: alt.NamedData(name=name) for part, name in names.items()}
    charts: dict[str, tuple[Any, str, str]] = {
        "map": (
            _map(data["map"]),
            "Layers × heads",
            f"A heat map of heads by layer: {METRICS[first]}.",
        )
    }
    if len(study.spectra.select(level="head", centring="centred")):
        text = (
            "Lines: the share of variance that the first components explain, on held-out inputs"
            " with an interval, and in the sample."
        )
        charts["spectrum"] = (
            explained_curve(data["spectrum"]),
            "Variance explained by the leading components",
            text,
        )
    if study.has("rows"):
        lines = vector_lines(data["vectors"])
        charts["vectors"] = (
            lines,
            "Leading eigenvectors of rows",
            "Lines: the entry of each eigenvector at each key position.",
        )
    if study.has("matrices"):
        maps = heat_maps(data["maps"], columns=2)
        charts["maps"] = (
            maps,
            f"{titles[0].capitalize()} and leading eigenvectors of matrices",
            "Heat maps of queries by keys.",
        )
    elif study.has("rows"):
        lines = vector_lines(data["mean"], entry=titles[0], lines="mean")
        charts["mean"] = (
            lines,
            f"{titles[0].capitalize()} of each key",
            "A line: the mean over queries and inputs by key.",
        )
    return [
        figure(names[part], chart, title, text, "canvas" if part == "maps" else "svg")
        for part, (chart, title, text) in charts.items()
    ]


def _map(data: alt.NamedData) -> alt.LayerChart:
    """The map of layers × heads that is saved; on the page it is made of buttons.

    Rows: layer, order, head, value, label, dark.
    """
    base = alt.Chart(data).encode(
        x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("layer:N", title="layer", sort=alt.EncodingSortField("order", op="min")),
    )
    cells = base.mark_rect().encode(
        color=alt.Color("value:Q", scale=alt.Scale(range=["#bce4d8", "#20466e"]), title="")
    )
    ink = alt.condition("datum.dark", alt.value("white"), alt.value("black"))
    return (cells + base.mark_text(fontSize=10).encode(text="label:N", color=ink)).properties(
        width=alt.Step(34), height=alt.Step(24)
    )


def _site(study: Study, site: Site, side: int, arrays: Arrays) -> tuple[dict[str, Any], int]:
    scope = Scope.of(site, "head")
    record: dict[str, Any] = {"spectra": {}}
    for analysis in ("rows", "matrices"):
        found = study.spectra.select(
            analysis=analysis,
            level="head",
            centring="centred",
            stack=site.stack,
            layer=site.layer,
        )
        if len(found):
            chosen = counted(len(found.spectra[0].eigenvalues))
            curves = {
                name: arrays.add(
                    np.stack([getattr(s, name)[chosen - 1] for s in found]).astype(np.float32)
                )
                for name in ("held_out", "low", "high", "explained", "eigenvalues")
            }
            record["spectra"][analysis] = {"components": chosen.tolist(), **curves}
    if study.has("rows"):
        # (H, k, S)
        vectors = study.row_basis(scope).vectors[:, :, :VECTORS].transpose(1, 2).numpy()
        record["vectors"] = arrays.add_scaled(vectors.reshape(-1, vectors.shape[2]), np.int16) | {
            "each": vectors.shape[1]
        }
    if study.has("rows") and not study.has("matrices"):
        record["mean"] = arrays.add_scaled(study.row_basis(scope).mean.numpy(), np.int16)  # (H, S)
    step = 1
    if study.has("matrices") and site in study.matrix_results:
        parts = study.matrix_results[site]
        kept = parts["vectors"][:, :MAPS].numpy()
        masked = np.isnan(parts["mean"].numpy())[:, None]
        # (H, 1 + MAPS, T, S)
        maps = np.concatenate([parts["mean"].numpy()[:, None], np.where(masked, np.nan, kept)], 1)
        small, step = block_means(maps.reshape(-1, *maps.shape[2:]), side)
        record["maps"] = arrays.add_scaled(small, np.int8) | {"each": maps.shape[1]}
    return record, step
