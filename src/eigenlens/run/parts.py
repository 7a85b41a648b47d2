"""A long run in parts: each is written when it is finished, and not done again by a run that goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import EigenlensError
from .files import disk_errors, read_json, write_json


class Parts:
    """The folder of a run. `part("overlap", make)` is what `make()` gives, kept as JSON from then on.

    `request` is what was asked for, as JSON holds it: lists for tuples.
    """

    def __init__(self, folder: Path, request: dict[str, Any] | None = None) -> None:
        self.folder, self.request = folder, request or {}

    @classmethod
    def begin(
        cls, folder: Path, request: dict[str, Any], resume: bool = False, force: bool = False, what: str = "reproduction"
    ) -> Parts:
        """A folder for this request: a new one, or one of the same request to go on with; `what` names the kind of run."""
        request = json.loads(json.dumps(request))  # as a run that goes on will find it
        mark = folder / f"{what.replace(' ', '-')}-request.json"
        if folder.is_file():
            raise EigenlensError(f"{folder} is a file; name a folder for the {what}")
        if folder.is_dir() and any(folder.iterdir()):
            if not mark.is_file():
                raise EigenlensError(f"{folder} exists and is not a {what}; name another folder")
            if resume:
                if (stored := read_json(mark)) != request:
                    changed = [key for key in request if stored.get(key) != request[key]]
                    raise EigenlensError(
                        f"the {what} in {folder} was begun with another {', '.join(changed)}; "
                        "resume with the same, or begin anew with --force"
                    )
            elif force:
                shutil.rmtree(folder)
            else:
                raise EigenlensError(f"{folder} already holds a {what}; go on with --resume or begin anew with --force")
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if not mark.is_file():
            write_json(mark, request)
        return cls(folder, request)

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.json").is_file()

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        if not self.has(name):
            self.write(name, make())
        return self.read(name)  # as a run that goes on will find it

    def read(self, name: str) -> Any:
        return read_json(self.folder / f"{name}.json")

    def write(self, name: str, content: Any) -> None:
        path = self.folder / f"{name}.json"
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
