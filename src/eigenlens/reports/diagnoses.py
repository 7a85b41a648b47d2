"""The parts of the page that show what heads and layers do, one for each diagnostic."""

from __future__ import annotations

from ..diagnostics import Finding
from ..studies.result import Study
from .figures import figure
from .parts import PagePart
from .tables import Table


def diagnosis_parts(study: Study, key: str, named: str) -> list[PagePart]:
    """One part per diagnostic, with its sentence, picture and tables.

    The first part says which diagnostics do not apply, and why.
    """
    found = study.diagnostics.found
    if not found:
        return []
    layers = Table(f"{key}-by-layer", "Every layer", study.diagnostics.rows())
    parts = [
        PagePart(f"{key}-layers", f"Layer by layer{named}", [_overview(study)], tables=[layers])
    ]
    parts[0].notes = [
        f"{f.title}: not applicable, {f.note}." for f in study.diagnostics.values() if f.note
    ]
    return parts + [_part(finding, f"{key}-{finding.name}", named) for finding in found]


def _overview(study: Study) -> str:
    number = study.diagnostics_every
    every = f" Diagnostics were measured on one input in {number}." if number > 1 else ""
    return (
        "One number per diagnostic and layer; where a diagnostic measures heads, the mean over the"
        f" heads of the layer. Each diagnostic has a part of its own below.{every}"
    )


def _part(finding: Finding, key: str, named: str) -> PagePart:
    first = next(iter(finding.words.values()))
    title = f"{first[0].upper()}{first[1:]}" if finding.level == "head" else "Along the layers"
    drawn = figure(key, finding.plot(), title, f"{finding.title}. {finding.sentence}")
    shown = ("stack", "layer", "head", *finding.words)  # intervals would double the columns
    rows = [{name: value for name, value in row.items() if name in shown} for row in finding.rows()]
    tables = [Table(f"{key}-numbers", f"Every {finding.level}", rows, folded=True)]
    tables += [
        Table(f"{key}-{i}", title, rows, folded=True)
        for i, (title, rows) in enumerate(finding.tables.items())
        if rows
    ]
    notes = [f"{name} = {value}" for name, value in finding.settings.items()]
    message = [f"measured with {', '.join(notes)}."] if notes else []
    return PagePart(
        key, f"{finding.title}{named}", [finding.sentence], [drawn], tables, notes=message
    )
