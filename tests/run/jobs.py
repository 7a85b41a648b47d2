"""Jobs without a model, which the processes of a cluster can import, and shards for them."""

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from eigenlens.run.shards import Shard, shard_groups
from run.processes import until

STEPS = 4
"""Inputs in every shard."""


def some_shards(number, content=None):
    """Trunks of shards `0 … number − 1`, each of one document.

    Their content is their number, or `content(number)`.
    """
    make = content or (lambda i: i)
    return shard_groups(
        [Shard(i, STEPS, (f"document {i}",), partial(make, i)) for i in range(number)]
    )


@dataclass
class Spelling:
    """The state of a shard is its number, a merge puts two in brackets.

    The result spells the order of all merges.
    """

    threads: int = 1

    def run(self, content, tick):
        tick(STEPS)
        return str(content)

    def merge(self, mine, theirs):
        return f"({mine} {theirs})"


@dataclass
class Late(Spelling):
    """Early shards take longer than late ones."""

    def run(self, content, tick):
        time.sleep(0.05 * (-content % 5))
        return super().run(content, tick)


@dataclass
class Failing(Spelling):
    """Some shards always fail, others kill the process that works on them, every time."""

    fail: tuple[int, ...] = ()
    die: tuple[int, ...] = ()

    def run(self, content, tick):
        if content in self.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if content in self.fail:
            raise ValueError(f"{content} is not to my taste\nand that is all")
        return super().run(content, tick)


@dataclass
class Noted(Spelling):
    """Every shard notes its process in a folder when it begins.

    While the folder holds a file `wait`, all shards wait.
    """

    folder: str = ""

    def run(self, content, tick):
        folder = Path(self.folder)
        tick(STEPS // 2)
        (folder / f"{content}-{os.getpid()}-{time.monotonic_ns()}").touch()
        while (folder / "wait").exists():
            time.sleep(0.02)
        return super().run(content, tick)


@dataclass
class Together(Noted):
    """No shard ends before two processes have begun one each.

    One that waits in vain leaves a file `alone`.
    """

    def run(self, content, tick):
        done = super().run(content, tick)
        try:
            until(lambda: len({process for _, process in resume_from(self.folder)}) > 1)
        except AssertionError:
            # the shard is tried again, and another process may be free by then
            (Path(self.folder) / "alone").touch()
            raise
        return done


def resume_from(folder):
    """The shards that have begun under `Noted`, by process, each as often as it did."""
    found = [file.name.split("-")[:2] for file in Path(folder).iterdir() if "-" in file.name]
    return sorted((int(shard), int(process)) for shard, process in found)


@dataclass
class Heavy:
    """The content and the state of a shard are a quarter of a million numbers."""

    threads: int = 1

    def run(self, content, tick):
        tick(STEPS)
        return {"sum": torch.from_numpy(content).double()}

    def merge(self, mine, theirs):
        mine["sum"] += theirs["sum"]
        return mine
