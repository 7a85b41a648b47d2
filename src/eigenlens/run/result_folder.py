"""The folder of a result: checked before it is written, and read with clear errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from ..errors import EigenlensError
from ..shell import command, option
from .files import is_empty, made_folder, read_json, write_json

RESULTS = {
    "study": "a study",
    "plan": "a plan",
    "evaluation": "an evaluation",
    "collapse": "a collapse run",
    "explanation": "an explanation",
    "comparison": "a comparison",
    "bench": "a bench",
    "reproduction": "a reproduction",
    "run": "a training run",
}
"""Every kind of result in words.

The file `study.json`, `plan.json`, … tells which one a folder holds.
"""


def check_output_dir(output_dir: str | Path | None, overwrite: bool, kind: str) -> Path | None:
    """Return the folder for a new result of a kind, or None if none is asked for.

    A folder that is not empty is refused unless `overwrite` is set; a folder of another kind of
    result is always refused.
    """
    if output_dir is None:
        return None
    folder = Path(output_dir)
    others = [other for other in RESULTS if other != kind and (folder / f"{other}.json").exists()]
    if folder.is_file() or others:
        what = "a file" if folder.is_file() else f"the folder of {RESULTS[others[0]]}"
        raise EigenlensError(
            f"{folder} already exists and is {what}; name another folder for the {kind}"
        )
    if folder.exists() and not overwrite and not (folder.is_dir() and is_empty(folder)):
        raise EigenlensError(
            f"{folder} already exists; name another folder, or overwrite it with"
            f" {option('overwrite')}"
        )
    return folder


def write_result(folder: str | Path, kind: str, content: dict[str, Any]) -> Path:
    """Write a result's JSON file, such as `plan.json`, into a folder, and return the folder."""
    folder = made_folder(folder)
    write_json(folder / f"{kind}.json", content)
    return folder


def read_result(
    folder: str | Path, kind: str, version: int | None, made_by: str | Sequence[str | Path]
) -> dict[str, Any]:
    """Return the content of a result's JSON file.

    A folder without that file, or with a file of another version, is refused with the reason.

    `version` is what the file must have under `format`; None for results whose file has no such
    entry. `made_by` is the command that makes such a result (into this folder if it names no
    other), or the call in Python.
    """
    path = Path(folder) / f"{kind}.json"
    if not path.is_file():
        where = () if "-o" in made_by else ("-o", Path(folder))
        how = made_by if isinstance(made_by, str) else command(*made_by, *where)
        raise EigenlensError(
            f"{folder} is not a {kind}: it has no {path.name}; make one with: {how}"
        )
    content = read_json(path)
    if version is None and not isinstance(content, dict):
        raise EigenlensError(
            f"{path} is not a file that eigenlens writes for {RESULTS[kind]}; make it again"
        )
    found = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or found != version or isinstance(found, bool):
        raise EigenlensError(
            f"the {kind} in {folder} has format {_short(found)}, written by {_writer(content)}, and"
            f" eigenlens {__version__} reads format {version}; make it again"
        )
    return content


def _writer(content: Any) -> str:
    """Return the version of eigenlens that wrote a result's JSON file, in words."""
    for place in (("versions",), ("facts", "versions"), ("facts",), ()):
        record = content
        for key in place:
            record = record.get(key) if isinstance(record, dict) else None
        if isinstance(record, dict) and isinstance(record.get("eigenlens"), str):
            return f"eigenlens {_short(record['eigenlens'])}"
    return "an unknown version"


@contextmanager
def report_damage(folder: str | Path, kind: str, file: str | None = None) -> Iterator[None]:
    """Turn anything that fails in this block into one sentence: the result's file is damaged.

    Only for code that turns the content of a file into a result: there, a failure means that the
    file is not as it was written.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        where = file or f"{kind}.json"
        raise EigenlensError(
            f"the {kind} in {folder} is damaged: {_message(error)} in {where}; make it again"
        ) from error


def _message(error: Exception) -> str:
    """Return an exception in one line: its type, the start of its message, and its notes."""
    return " ".join([f"{type(error).__name__}({_short(error)})", *getattr(error, "__notes__", [])])


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:200]
