"""What the heads and layers do: a part of the page for each diagnostic."""

from __future__ import annotations

from ..diagnostics import Finding
from ..studies.result import Study
from .figures import figure
from .parts import PagePart
from .tables import Table


def diagnosis_parts(study: Study, key: str, named: str) -> list[PagePart]:
    """Each diagnostic with its sentence, picture and tables.

    Those that do not apply say why in the first part.
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
    every = f" Diagnostics saw one input in {number}." if number > 1 else ""
    return (
        "The first number of each diagnostic, of heads the mean of the layer; each is told in full"
        f" below.{every}"
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
    message = [f"with {', '.join(notes)}."] if notes else []
    return PagePart(
        key, f"{finding.title}{named}", [finding.sentence], [drawn], tables, notes=message
    )
