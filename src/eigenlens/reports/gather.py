"""Opening the results of a page, or the folders that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..display import listed
from ..errors import EigenlensError
from ..run.result import Result
from .kinds import ON_PAGE, STUDY, Kind, file_names, kinds_in
from .results import Results


def gather(given: Iterable[Result | str | Path]) -> Results:
    """Open every result and every folder.

    A folder without a result of its own stands for the results in the folders inside it, as `demo`
    makes them.
    """
    found, seen = Results(ON_PAGE), set()
    for result in given:
        if not isinstance(result, str | Path):
            found.add(result)
            continue
        for folder in _folders(Path(result)):
            for kind in _held(folder):
                place = (folder.resolve(), kind)
                if place not in seen:
                    seen.add(place)
                    found.add(kind.result.open(folder))
    if not found.all:
        kinds = listed([kind.singular for kind in ON_PAGE if kind.view is not None], "or")
        raise EigenlensError(f"there is nothing to report; give the folder of {kinds}")
    return found


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise EigenlensError(f"no such folder: {folder}")
    if _held(folder):
        return [folder]
    if any(folder.glob("unfinished*")):
        STUDY.result.open(folder)  # says that it was interrupted
    inside = [part for part in sorted(folder.iterdir()) if part.is_dir() and _held(part)]
    if not inside:
        raise EigenlensError(
            f"{folder} holds no result of eigenlens, nor does a folder inside it"
            f" (none of {file_names(ON_PAGE)})"
        )
    return inside


def _held(folder: Path) -> list[Kind]:
    return [kind for kind in kinds_in(folder) if kind.on_page]
