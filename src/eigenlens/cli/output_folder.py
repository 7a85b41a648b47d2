"""Where a command puts its result when no folder was named: a new one beside the others."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path


def choose_output_dir(
    output_dir: Path | None,
    name: str,
    results: Sequence[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> Path:
    """The folder that was named; by default the first of `study`, `study-2`, … that is free.

    `results` are the files that the command ends with, inside the folder. With `resume` it is the
    last folder that is there, with `overwrite` the first. One whose run was interrupted is not
    passed by: the command then says how to go on.
    """
    if output_dir is not None:
        return output_dir
    last = Path(name)
    if overwrite:
        return last
    for folder in _series(name):
        files = [folder / result for result in results]
        if not any(_filled(file.parent) for file in files):
            chosen = last if resume else folder
            break
        last = chosen = folder
        if not resume and any(_interrupted(file) for file in files):
            break
    if chosen != Path(name):
        print(f"eigenlens: {name} is there already; the folder is {chosen}", file=sys.stderr)
    return chosen


def latest(name: str, result: str) -> Path:
    """The last of `plan`, `plan-2`, … that holds a result; the first, where none does."""
    last = Path(name)
    for folder in _series(name):
        if not _filled(folder):
            return last
        if (folder / result).is_file():
            last = folder
    raise AssertionError("the series has no end")


def _series(name: str) -> Iterator[Path]:
    return (Path(name if number == 1 else f"{name}-{number}") for number in count(1))


def _filled(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _interrupted(result: Path) -> bool:
    """Whether a run that can go on was begun where this result should be."""
    home = result.parent
    started = any(
        found for pattern in ("unfinished*", "*-request.json") for found in home.glob(pattern)
    )
    return started and not result.is_file()
