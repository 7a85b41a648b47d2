"""One paper in a process of its own, in as many stretches as it takes.

A file beside the folder of its parts says which code, libraries and machine began it, and how many
seconds it has worked. Parts of another code are thrown away: a result has one author.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eigenlens import EigenlensError
from eigenlens.papers.paper import Size
from eigenlens.run.files import read_json, write_json

from . import code, header
from .papers import stored
from .store import write

EVERY = 10.0
"""Seconds between two notes of the time that a run has taken; so much is lost if it is killed."""
PATIENCE = 30.0
"""Seconds that a process has to end when it is told to."""


@dataclass(frozen=True)
class Settings:
    """How papers are run. `build` holds unfinished runs, `output` gets the results."""

    build: Path
    output: Path
    size: Size = "full"
    seed: int = 0
    engine: str = "local"
    workers: int | None = None
    threads: int | None = None
    """Threads of each process; None leaves them to torch."""

    def command(self, name: str) -> list[str]:
        """The words of `eigenlens reproduce` that say what is measured."""
        words = ["reproduce", name]
        if self.size != "full":
            words.append(f"--{self.size}")
        return words if self.seed == 0 else [*words, "--seed", str(self.seed)]

    @property
    def machine(self) -> dict[str, Any]:
        given = os.environ.get("OMP_NUM_THREADS")
        threads = self.threads or (int(given) if given else None)
        if self.engine == "dask":
            threads = 1  # of each worker
        return header.machine(threads, self.engine, self.workers)


@dataclass
class Run:
    """The run of a paper; `begin`, `alive`, and `finish` or `stop`."""

    name: str
    settings: Settings
    tree: str
    before: float = 0.0
    """Seconds of earlier stretches."""
    note: str = ""
    _process: Any = None
    _since: float = 0.0
    _noted: float = 0.0
    _log: Any = field(default=None, repr=False)

    @property
    def folder(self) -> Path:
        return self.settings.build / self.name

    @property
    def log(self) -> Path:
        return self.settings.build / f"{self.name}.log"

    @property
    def mark(self) -> Path:
        return self.settings.build / f"{self.name}.run.json"

    @property
    def seconds(self) -> float:
        """What the run has taken, over all its stretches."""
        return self.before + (time.monotonic() - self._since if self._process else 0.0)

    def author(self) -> dict[str, Any]:
        """What has to be the same in all stretches of a run."""
        return {
            "code": self.tree,
            "versions": header.versions(),
            "processor": self.settings.machine["processor"],
            "size": self.settings.size,
            "seed": self.settings.seed,
        }

    def words(self) -> list[str]:
        """The command of a stretch."""
        return [
            *(sys.executable, "-m", "eigenlens.cli", *self.settings.command(self.name)),
            *("-o", str(self.settings.build), "--resume", "--engine", self.settings.engine),
            *(("--workers", str(self.settings.workers)) if self.settings.workers else ()),
        ]

    def begin(self, quiet: bool) -> None:
        """Start the process, after throwing away what another code left behind."""
        self.settings.build.mkdir(parents=True, exist_ok=True)
        author, mark = self.author(), read_json(self.mark) if self.mark.is_file() else {}
        if self.folder.exists() and mark.get("author") != author:
            theirs = mark.get("author", {})
            other = [key for key in author if theirs.get(key) != author[key]]
            self.note = f"begun anew: the parts in {self.folder} have another {', '.join(other)}"
            shutil.rmtree(self.folder)
        self.before = mark.get("seconds", 0.0) if self.folder.exists() else 0.0
        self._keep()
        threads = self.settings.threads
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(code.ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            **({"OMP_NUM_THREADS": str(threads)} if threads else {}),
        }
        self._log = self.log.open("w", encoding="utf-8")
        errors = self._log if quiet else None
        self._since = self._noted = time.monotonic()
        self._process = subprocess.Popen(self.words(), stdout=self._log, stderr=errors, env=env)

    def alive(self) -> bool:
        """Whether it still works; its seconds are noted now and then."""
        if self._process.poll() is not None:
            return False
        if time.monotonic() - self._noted > EVERY:
            self._keep()
            self._noted = time.monotonic()
        return True

    def stop(self) -> int:
        """End the process, if it has not ended, and note its seconds; returns its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            exit_code: int = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            exit_code = self._process.wait()
        self.before, self._process = self.seconds, None
        self._log.close()
        self._keep()
        return exit_code

    def store(self) -> Path:
        """Write the result of a finished run; refused if the code changed meanwhile."""
        if code.committed_tree() != self.tree:
            raise EigenlensError(f"{code.SOURCE} changed while {self.name} ran; run it again")
        command = " ".join(["eigenlens", *self.settings.command(self.name)])
        written_by = {"commit": code.commit(), "code": self.tree}
        head = header.header(
            *("reproduction", command, self.seconds, self.settings.seed, written_by),
            self.settings.machine,
        )
        done = stored(self.name, read_json(self.folder / "reproduction.json"), self.settings.size)
        path = self.settings.output / f"{self.name}.json"
        write(path, {**head, **done})
        return path

    def _keep(self) -> None:
        write_json(self.mark, {"author": self.author(), "seconds": round(self.seconds, 1)})
