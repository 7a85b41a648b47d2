"""Every number of a study, head by head and layer by layer."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..captures import Head, Site, location_of
from ..spectra.spectrum import Spectra
from .side_by_side import head_dimensions

if TYPE_CHECKING:
    from .result import Study


def head_rows(study: Study) -> list[dict[str, Any]]:
    """One record per head: the numbers of its spectra and of its diagnostics.

    Numbers of spectra are named after their analysis and centring.
    """
    found = {location_of(r): r for r in wide_rows(study.spectra.select(level="head"))}
    for record in head_dimensions(study) if study.has("within") else ():
        found.setdefault(location_of(record), {}).update(
            {k: x for k, x in record.items() if not k.startswith(("rows_", "matrices_"))}
        )
    for head, numbers in study.diagnostics.heads().items():
        found.setdefault(head, asdict(head)).update(numbers)
    return list(found.values())


def layer_rows(study: Study) -> list[dict[str, Any]]:
    """One record per layer: the numbers of its spectra, along depth, and of its diagnostics."""
    spectra = wide_rows(study.spectra.select(level="layer"))
    found = {Site(r["stack"], r["layer"]): r for r in spectra}
    along = study.depth.by_layer() if study.has("depth") else {}
    for site, numbers in (*along.items(), *study.diagnostics.layers().items()):
        found.setdefault(site, {**asdict(site), "head": None}).update(numbers)
    return [found[site] for site in sorted(found)]


def wide_rows(spectra: Spectra) -> list[dict[str, Any]]:
    """One record per head, with names such as `rows_centred_…` and `matrices_raw_…`.

    The prefix is the analysis and the centring.
    """
    found: dict[Head | Site | str, dict[str, Any]] = {}
    for spectrum in spectra:
        where = {name: getattr(spectrum, name) for name in ("stack", "layer", "head")}
        record = found.setdefault(spectrum.at, where)
        prefix = f"{spectrum.analysis}_{spectrum.centring.replace('-', '_')}"
        skipped = {"analysis", "level", "centring", "stack", "layer", "head"}
        record |= {
            f"{prefix}_{key}": value for key, value in spectrum.row().items() if key not in skipped
        }
    return list(found.values())
