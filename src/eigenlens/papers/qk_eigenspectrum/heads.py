"""The spectra of loaded models' heads beside how near each head looks."""

from __future__ import annotations

from typing import Any

from ...captures import location_of
from ...diagnostics.qk import QueryKey
from ...models.load import load
from ..diagnostic_pass import DiagnosticPass, start_diagnostic
from ..inputs import make_batches


def head_rows(name: str, inputs: int, length: int, text: str, seed: int) -> list[dict[str, Any]]:
    """One row per head of a catalogue model: its spectrum, and where it looks on real inputs."""
    model = load(name)
    vision = model.kind == "vision"
    batches = make_batches(
        model, "photos" if vision else text, None if vision else length, inputs, seed, 4
    )
    localisation, spectra = DiagnosticPass(model, "localisation", batches), QueryKey()
    start_diagnostic(spectra, localisation.studied)
    looks = localisation.run()
    near = {location_of(row): row for row in looks.result().rows()}
    rows = []
    for row in spectra.result().rows():
        where = near[location_of(row)]
        rows.append(
            {
                "model": name,
                "layer": row["layer"],
                "head": row["head"],
                "mean": row["mean"],
                "variance": row["variance"],
                "concentration": row["concentration"],
                "trace": row["trace"],
                "trace of square": row["trace_of_square"],
                "square": row["square"],
                "share complex": row["complex"],
                "distance": where["relative"],
                "profile entropy": where["entropy"],
                "rho near": where["near"],
                "rho far": where["far"],
            }
        )
    return rows
