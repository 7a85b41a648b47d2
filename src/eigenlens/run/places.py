"""Folders that results are written to."""

from __future__ import annotations

from pathlib import Path

from ..errors import EigenlensError

RESULTS = {
    "study": "a study", "plan": "a plan", "evaluation": "an evaluation", "collapse": "a collapse run",
    "explanation": "an explanation",
}  # fmt: skip
"""A folder holds the result that its file `study.json`, `plan.json`, … says."""


def check_place(out: str | Path | None, force: bool, kind: str) -> Path | None:
    """The folder for a result; one that is there is not overwritten unasked, that of another kind of result never."""
    if out is None:
        return None
    folder = Path(out)
    others = [other for other in RESULTS if other != kind and (folder / f"{other}.json").exists()]
    if folder.is_file() or others:
        what = "a file" if folder.is_file() else f"the folder of {RESULTS[others[0]]}"
        raise EigenlensError(f"{folder} already exists and is {what}; name another folder for the {kind}")
    if folder.exists() and not force and (not folder.is_dir() or any(folder.iterdir())):
        raise EigenlensError(f"{folder} already exists; name another folder, or overwrite it with --force")
    return folder
