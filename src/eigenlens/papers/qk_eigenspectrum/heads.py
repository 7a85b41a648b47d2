"""The spectra of loaded models' heads beside how near each head looks."""

from __future__ import annotations

from typing import Any

from ...diagnostics.localisation import Localisation
from ...diagnostics.qk import QueryKey
from ...sources.forward import forward_of
from ...sources.models import load
from ..diagnosed import begun, subject_of, watched
from ..inputs import batches_of


def head_rows(name: str, inputs: int, length: int, text: str, seed: int) -> list[dict[str, Any]]:
    """A row for every head of a model of the catalogue: its spectrum, and where it looks on real inputs."""
    model = load(name)
    vision = model.kind == "vision"
    batches = batches_of(model, "photos" if vision else text, None if vision else length, inputs, seed, 4)
    run = forward_of(model)
    subject = subject_of(model, lambda: run(batches[0]))
    spectra, looks = QueryKey(), Localisation()
    begun(spectra, subject)
    begun(looks, subject)
    with watched(subject, looks):
        for batch in batches:
            run(batch)
    near = {(row["stack"], row["layer"], row["head"]): row for row in looks.result().rows()}
    rows = []
    for row in spectra.result().rows():
        where = near[row["stack"], row["layer"], row["head"]]
        rows.append({
            "model": name, "layer": row["layer"], "head": row["head"], "mean": row["mean"], "variance": row["variance"],
            "concentration": row["concentration"], "trace": row["trace"], "trace of square": row["trace_of_square"],
            "square": row["square"], "share complex": row["complex"], "distance": where["relative"],
            "profile entropy": where["entropy"], "rho near": where["near"], "rho far": where["far"],
        })  # fmt: skip
    return rows
