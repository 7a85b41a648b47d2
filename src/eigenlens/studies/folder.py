"""The folder of a study on disk: how a study begins in it, goes on after it was killed, and ends.

A folder is in one of these states:

    new          not there, or empty
    interrupted  `unfinished/` has the request, the inputs and the checkpoints of a study that was
                 killed; in `unfinished.part/` it was killed while it wrote the inputs
    finished     `study.json` lists the files of the study
    foreign      holds something else, and no study is ever written there

While a process works in a folder it is locked, and a second process is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from ..data.inputs import Inputs, prepare
from ..errors import EigenlensError
from ..models.load import Model
from ..passes.versions import versions
from ..run.files import disk_errors, is_empty, locked, read_json, sha256, write_json
from ..shell import option, stored_option
from .options import Options
from .result import FILES


def identity_of(model: Model, options: Options, threads: int) -> dict[str, Any]:
    """What must not change when a study goes on, as JSON gives it back."""
    record = options.record()
    request = record.pop("request")
    request["data"] = [Path(name).name for name in request["data"]]
    facts = {
        "model": model.name,
        "weights": model.facts.fingerprint,
        "version": versions()["eigenlens"],
    }
    return json.loads(json.dumps({**facts, **request, **record, "threads": threads}))


class StudyFolder:
    """The folder that a study is made in.

    `resume` and `overwrite` say what may be done with a study that is there.
    """

    def __init__(self, path: Path, resume: bool = False, overwrite: bool = False) -> None:
        self.path, self.resume, self.overwrite = path, resume, overwrite
        self.unfinished = path / "unfinished"
        self.goes_on = False  # whether the interrupted study that is there is continued
        self._there = False  # whether the folder was there before
        self._locks = ExitStack()
        self._spool = path  # where new inputs are, until the folder is made
        self._request: dict[str, Any] = {}  # as `request.json` will have it

    @property
    def state(self) -> Literal["new", "interrupted", "finished", "foreign"]:
        if not self.path.exists():
            return "new"
        if not self.path.is_dir():
            return "foreign"
        if (self.path / "study.json").is_file():
            return "finished"
        if any(self.path.glob("unfinished*")):
            return "interrupted"
        return "new" if is_empty(self.path) else "foreign"

    def check(self) -> None:
        """Raise an error if the study must not be written to the folder."""
        state = self.state
        if self.path.is_file():
            raise EigenlensError(f"{self.path} is a file; name a folder for the study")
        if state == "foreign":
            raise EigenlensError(f"{self.path} exists and is not a study; name another folder")
        if state == "finished" and not self.overwrite:
            hint = (
                "it is finished, so there is nothing to resume"
                if self.resume
                else f"open it, name another folder, or overwrite it with {option('overwrite')}"
            )
            raise EigenlensError(f"{self.path} already holds a study; {hint}")
        if state == "interrupted" and not (self.resume or self.overwrite):
            raise EigenlensError(
                f"{self.path} holds a study that was interrupted; go on with {option('resume')} or"
                f" begin anew with {option('overwrite')}"
            )

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Check the folder, and lock it if it exists, for all work on the study.

        A new folder is made by `begin`, so that a request that fails leaves no folder behind.
        """
        self.check()
        self._there = self.path.is_dir()
        with self._locks:
            if self._there:
                self._locks.enter_context(locked(self.path))
            self.goes_on = self.resume and (self.unfinished / "request.json").is_file()
            yield

    def inputs(
        self, model: Model, options: Options, identity: dict[str, Any], scratch: Path
    ) -> Inputs:
        """The inputs of the study.

        A study that goes on has them already; otherwise they are made from the data, in `scratch`.
        """
        self._spool = scratch / "spool"
        self._spool.mkdir()
        if self.goes_on:
            self._check_same(identity)
            self._check_kept()
        with disk_errors(self._spool):
            made = prepare(
                model,
                options.request,
                self.unfinished if self.goes_on else self._spool,
                resume=self.goes_on,
            )
        self._request = {**identity, "fingerprint": made.facts.fingerprint}
        if self.goes_on and self._stored().get("fingerprint") != self._request["fingerprint"]:
            raise EigenlensError(
                f"the data of the study in {self.path} has changed since it was begun; begin anew"
                f" with {option('overwrite')}"
            )
        return made

    def begin(self) -> None:
        """Make the folder, and put the inputs and the request into it.

        Everything that could be wrong has been checked by now. What an older study left there goes.
        """
        if not self._there:
            with disk_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            self._locks.enter_context(locked(self.path))
            self.check()  # another process may have been here since
        try:
            with disk_errors(self.path):
                self._write_request()
        except BaseException:
            if not self._there:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def _write_request(self) -> None:
        """Write the inputs and the request, and remove an older study.

        If the process is killed meanwhile, the folder is as before, or `resume` begins anew.
        """
        part = self.path / "unfinished.part"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            for file in self._spool.iterdir():
                shutil.copyfile(file, part / file.name)
            kept = {file.name: sha256(part / file.name) for file in sorted(self._spool.iterdir())}
            write_json(part / "request.json", {**self._request, "inputs_kept": kept})
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        (self.path / "study.json").unlink(missing_ok=True)  # from here on there is no old study
        (self.unfinished / "request.json").unlink(missing_ok=True)
        shutil.rmtree(self.unfinished, ignore_errors=True)
        part.rename(self.unfinished)
        shutil.rmtree(self.path / "pictures", ignore_errors=True)
        for name in FILES:
            (self.path / f"{name}.safetensors").unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove the checkpoints of a study that is written."""
        shutil.rmtree(self.unfinished)

    def _stored(self) -> dict[str, Any]:
        """The request of the interrupted study."""
        stored = read_json(self.unfinished / "request.json")
        if not isinstance(stored, dict):
            raise EigenlensError(
                f"{self.unfinished / 'request.json'} is damaged; begin anew with"
                f" {option('overwrite')}"
            )
        return stored

    def _check_same(self, now: dict[str, Any]) -> None:
        """Raise an error if the interrupted study is another one.

        The version is checked first: other versions may store requests differently.
        """
        stored = self._stored()
        if (version := stored.get("version")) != now["version"]:
            raise EigenlensError(
                f"the interrupted study in {self.path} was begun by eigenlens"
                f" {version or 'of an unknown version'}, and this is eigenlens {now['version']}; go"
                f" on with the version that began it, or begin anew with {option('overwrite')}"
            )
        for key, value in now.items():
            if stored.get(key) != value:
                raise EigenlensError(
                    f"the interrupted study in {self.path} was begun with another"
                    f" {stored_option(key)}: {stored.get(key)} then, {value} now; resume with the"
                    f" same, or begin anew with {option('overwrite')}"
                )

    def _check_kept(self) -> None:
        """Raise an error if the inputs on disk have changed since they were written."""
        for name, digest in self._stored().get("inputs_kept", {}).items():
            path = self.unfinished / name
            if not path.is_file() or sha256(path) != digest:
                raise EigenlensError(
                    f"{path} has changed since it was written; begin anew with"
                    f" {option('overwrite')}"
                )
