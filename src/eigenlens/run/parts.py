"""A long run in parts: each is written when it is finished, and `resume` reuses it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import EigenlensError
from ..models.borrowed_names import named
from ..shell import option, stored_option
from .engine import Engine, choose_engine
from .files import LOCK, disk_errors, is_empty, locked, made_folder, read_json, write_json
from .progress import Progress, silent
from .shards import Shard, Tick
from .tasks import Packed, pack_work, unpack_work

Make = Callable[[], Any]


class Parts:
    """The folder of a run.

    `part("overlap", make)` returns what `make()` returns. The result is kept in the folder as JSON
    and is read from there the next time.

    `request` is what the user asked for, as JSON stores it (tuples as lists). `notes` are sentences
    about this run for its result to show. `models` are places of models that the user gave, by the
    names that parts load them by. A copy in another process is `away` from the folder and must not
    write there.
    """

    away = False

    def __init__(self, folder: Path, request: dict[str, Any] | None = None) -> None:
        self.folder, self.request = folder, request or {}
        self.notes: list[str] = []
        self.models: Mapping[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "away": True}

    @classmethod
    @contextmanager
    def held(
        cls,
        folder: Path,
        request: dict[str, Any],
        resume: bool = False,
        overwrite: bool = False,
        what: str = "reproduction",
    ) -> Iterator[Parts]:
        """Like `begin`, with the folder locked until the end: a second process is refused."""
        if folder.is_file():
            raise EigenlensError(f"{folder} is a file; name a folder for the {what}")
        with locked(made_folder(folder)):
            yield cls.begin(folder, request, resume, overwrite, what)

    @classmethod
    def begin(
        cls,
        folder: Path,
        request: dict[str, Any],
        resume: bool = False,
        overwrite: bool = False,
        what: str = "reproduction",
    ) -> Parts:
        """Return the parts of a new folder for this request, or of one with the same request.

        `what` names the kind of run.
        """
        request = json.loads(json.dumps(request))  # as a run with `resume` will read it
        cls.check(folder, request, resume, overwrite, what)
        mark = _mark(folder, what)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if overwrite and not resume:
                _empty(folder)  # the folder itself may be locked, and stays
        if not mark.is_file():
            write_json(mark, {**request, "eigenlens": __version__})
        return cls(folder, request)

    @staticmethod
    def check(
        folder: Path, request: dict[str, Any], resume: bool, overwrite: bool, what: str
    ) -> None:
        """Refuse a folder that cannot be used for this request, without changing anything."""
        mark = _mark(folder, what)
        if folder.is_file():
            raise EigenlensError(f"{folder} is a file; name a folder for the {what}")
        if not folder.is_dir() or is_empty(folder):
            return
        if not mark.is_file():
            raise EigenlensError(f"{folder} exists and is not a {what}; name another folder")
        if not resume and not overwrite:
            raise EigenlensError(
                f"{folder} already holds a {what}; continue it with {option('resume')} or start"
                f" again with {option('overwrite')}"
            )
        if not resume:
            return
        stored, asked = read_json(mark), json.loads(json.dumps(request))
        if (version := stored.pop("eigenlens", None)) != __version__:
            writer = f"eigenlens {version}" if version else "an earlier version of eigenlens"
            raise EigenlensError(
                f"the {what} in {folder} was begun by {writer}, and this is eigenlens"
                f" {__version__}; start again with {option('overwrite')}"
            )
        if stored != asked:
            changed = [stored_option(key) for key in asked if stored.get(key) != asked[key]]
            raise EigenlensError(
                f"the {what} in {folder} was begun with another {', '.join(changed)}; resume with"
                f" the same, or start again with {option('overwrite')}"
            )

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.json").is_file()

    def part(self, name: str, make: Make) -> Any:
        if not self.has(name):
            self.write(name, make())
        return self.read(name)  # as a run with `resume` will read it

    def each(
        self,
        makes: Mapping[str, Make],
        progress: Progress = silent,
        what: str = "working through the parts",
    ) -> list[Any]:
        """Make parts that do not need each other, in the order of `makes`.

        A cluster makes many of them at once.
        """
        self.ahead(makes, progress, what)
        found = []
        for done, (name, make) in enumerate(makes.items()):
            progress(what, done, len(makes))
            found.append(self.part(name, make))
        return found

    def ahead(
        self,
        makes: Mapping[str, Make],
        progress: Progress = silent,
        what: str = "working through the parts",
    ) -> None:
        """Let the current engine make these parts, if it is a cluster.

        A part that it cannot make is left to `part`, which raises the error.
        """
        engine = choose_engine()
        missing = {
            name: partial(_with_models, self.models, make)
            for name, make in makes.items()
            if not self.has(name)
        }
        if engine.remote and missing:
            before, all_of_them = len(makes) - len(missing), len(makes)
            for name, made in _made(
                engine, missing, lambda done: progress(what, before + done, all_of_them)
            ):
                if "refused" not in made:
                    self.write(name, made["part"])

    def checkpoint(self, name: str) -> Path | None:
        """Return the file in which the training of a part saves its progress.

        None in another process, which may not be able to read the folder.
        """
        return None if self.away else self.folder / f"{name}.safetensors"

    def read(self, name: str) -> Any:
        return read_json(self.folder / f"{name}.json")

    def write(self, name: str, content: Any) -> None:
        path = self.folder / f"{name}.json"
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)


@dataclass(frozen=True)
class _Piece(Shard):
    def __str__(self) -> str:
        return f"the part {self.documents[0]}"


@dataclass
class _Making:
    """The job that makes parts: each part is one shard and one group, and nothing is merged."""

    threads: int

    def run(self, content: Packed, tick: Tick) -> dict[str, Any]:
        try:
            return {"part": unpack_work(content)()}
        except EigenlensError as error:
            return {"refused": str(error)}

    def merge(self, mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("parts are not merged")


def _with_models(places: Mapping[str, str], make: Make) -> Any:
    with named(places):
        return make()


def _made(
    engine: Engine, makes: Mapping[str, Make], tick: Tick
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of each part, in order, as the engine finishes them.

    A part that fails every time ends the run.
    """
    pieces = [
        _Piece(number, 1, (name,), partial(pack_work, make))
        for number, (name, make) in enumerate(makes.items())
    ]
    for at in engine.fold(_Making(engine.threads), [[piece] for piece in pieces], progress=tick):
        piece = pieces[at.group]
        if at.state is None:
            raise EigenlensError(f"{piece} failed: {at.failed[0].error}")
        yield piece.documents[0], at.state


def _mark(folder: Path, what: str) -> Path:
    return folder / f"{what.replace(' ', '-')}-request.json"


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name == LOCK:
            continue  # this process may hold it
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
