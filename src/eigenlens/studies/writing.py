"""The files of a finished study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..run.files import seal, sha256, write_json, write_tensors
from .recorder import Recording
from .result import FORMAT
from .stored import matrix_tensors, spectra_tensors


def write_study(folder: Path, facts: dict[str, Any], recording: Recording) -> None:
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
    if recording.depth is not None:
        tensors["depth"] = recording.depth.state()
    if recording.diagnostics is not None:
        tensors["diagnostics"] = recording.diagnostics.state()
    files = {}
    for name, content in tensors.items():
        path = folder / f"{name}.safetensors"
        write_tensors(path, content)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    record = {"format": FORMAT, **facts, "files": files}
    write_json(folder / "study.json", {**record, "seal": seal(record)})
