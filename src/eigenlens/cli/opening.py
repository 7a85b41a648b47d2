"""The result in a folder, of whatever kind it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EigenlensError

if TYPE_CHECKING:
    from ..reports.kinds import Kind
    from ..run.result import Result


def open_result(folder: Path) -> tuple[Kind, Result]:
    """The kind of the result in a folder, and the result.

    Its file `study.json`, `plan.json`, … says which kind it is.
    """
    from ..reports.kinds import KINDS, STUDY, file_names, kinds_in

    held = kinds_in(folder)
    if not held and folder.is_dir() and not any(folder.glob("unfinished*")):
        raise EigenlensError(
            f"{folder} is no study and no other result (it has none of {file_names(KINDS)})"
        )
    kind = held[0] if held else STUDY  # which says what is wrong with the folder
    return kind, kind.result.open(folder)
