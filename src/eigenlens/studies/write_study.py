"""Writing the files of a finished study, and its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.inputs import Inputs
from ..data.token_text import id_texts
from ..models.load import Model
from ..passes.facts import Facts
from ..run.files import seal, sha256, write_json, write_tensors
from ..run.run_all import describe_failures
from ..spectra.sentences import bound_levels
from ..stats.rounding import precision_of
from .diagnostic_runner import DiagnosticRunner
from .recorder import Recording
from .result import FORMAT
from .stored import matrix_tensors, spectra_tensors
from .survey import Survey
from .weight_spectra import weight_spectra


def write_study(
    folder: Path,
    model: Model,
    inputs: Inputs,
    surveyed: Survey,
    recording: Recording,
    threads: int,
) -> None:
    """Write the files of a finished study; `study.json` comes last and makes it one."""
    tensors: dict[str, dict[str, Tensor]] = {"spectra": spectra_tensors(recording.spectra)}
    for name in ("rows", "moments"):
        parts = {"fit": recording.fit.get(name), "held": recording.held.get(name)}
        if parts["fit"] is not None:
            tensors[name] = {
                f"{part}:{key}": x
                for part, s in parts.items()
                if s is not None
                for key, x in s.state().items()
            }
    if recording.matrices is not None:
        tensors["matrices"] = matrix_tensors(recording)
    no_weights = ""
    if recording.within is not None:
        weights, no_weights = weight_spectra(model, surveyed.sites)
        tensors["within"] = {**recording.within.state(), **weights}
    if recording.depth is not None:
        tensors["depth"] = recording.depth.state()
    if recording.diagnostics is not None:
        tensors["diagnostics"] = recording.diagnostics.state()
    files = {}
    for name, content in tensors.items():
        path = folder / f"{name}.safetensors"
        write_tensors(path, content)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    facts = _facts(model, inputs, surveyed, recording, threads, no_weights)
    record = {"format": FORMAT, **facts, "files": files}
    write_json(folder / "study.json", {**record, "seal": seal(record)})


def _facts(
    model: Model,
    inputs: Inputs,
    surveyed: Survey,
    recording: Recording,
    threads: int,
    no_weights: str,
) -> dict[str, Any]:
    """What `study.json` says of the study, besides the files that hold its numbers."""
    failed, got = recording.failed, len(inputs.buckets)
    asked = surveyed.options.request.max_inputs
    facts = Facts.now(
        model.facts,
        inputs.facts,
        length=inputs.length,
        inputs=got - sum(failure["inputs"] for failure in failed),
        notes=[
            *surveyed.notes,
            *_notes(model, got, asked, recording),
            *([no_weights] if no_weights else []),
        ],
        seconds=recording.seconds,
    )
    return {
        **facts.record("model", "versions", "seconds", "created", "data", "length"),
        "precision": precision_of(model.module),
        **facts.record("inputs"),
        "options": {
            **surveyed.options.record(),
            "matrices_by": surveyed.matrix,
            "depth_by": surveyed.depth.record() if surveyed.depth else None,
            "within_by": asdict(surveyed.within) if surveyed.within else None,
            "threads": threads,
        },
        "sites": {str(site): info.record() for site, info in surveyed.sites.items()},
        "diagnostics": _diagnosed(recording.diagnostics, model),
        **facts.record("notes"),
        "partial": failed,
    }


def _notes(model: Model, got: int, asked: int, recording: Recording) -> Iterator[str]:
    """The notes of a study, besides those of the survey."""
    if got < asked:
        yield f"the data gave {got:,} inputs, fewer than the {asked:,} that were asked for"
    if recording.depth is not None and not recording.depth.sums:
        yield (
            f"the blocks of {model.name} do not pass on tokens (B, T, C), so there are no metrics"
            " along depth"
        )
    if bounds := bound_levels(recording.spectra):
        yield (
            f"the spectra of whole matrices of {bounds} are lower bounds: the true eigenvalues and"
            " shares of variance in the sample are at least as large, so fewer dimensions may be"
            " enough"
        )
    if recording.failed:
        yield describe_failures("the study", recording.failed)


def _diagnosed(runner: DiagnosticRunner | None, model: Model) -> dict[str, Any]:
    """What findings need besides their numbers.

    That is why some do not apply, and the texts of the tokens that they name.
    """
    if runner is None:
        return {}
    numbers = {n for diagnostic in runner.diagnostics.values() for n in diagnostic.token_ids()}
    listed = sorted(numbers)
    texts = id_texts(model.tokenizer, torch.tensor([listed]))[0] if listed else []
    return {
        "every": runner.every,
        "notes": runner.notes,
        "tokens": {str(number): text for number, text in zip(listed, texts)},
    }
