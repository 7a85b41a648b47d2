"""Engines: who works on the shards.

The local one is this process; the Dask engine is in `cluster.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeVar

import torch

from ..errors import EigenlensError
from .shards import Failure, Job, PartialFold, Shard, Tick, stopped

S = TypeVar("S")
OnFailure = Literal["stop", "partial"]
"""What a shard that always fails means: the end of the run, or a result that says what is missing
from it.
"""


class Engine(Protocol):
    """Folds shards into groups.

    The numbers depend on the shards and on `threads`, and on nothing else.
    """

    remote: bool
    """Whether other processes do the work, which then load the model themselves."""
    here: int
    """Processes that it starts on this machine."""
    on_failure: OnFailure

    @property
    def threads(self) -> int:
        """Of each process that computes."""

    def fold(
        self,
        job: Job[S],
        shard_groups: Sequence[Sequence[Shard]],
        resume_from: PartialFold[S] | None = None,
        progress: Tick | None = None,
    ) -> Iterator[PartialFold[S]]:
        """Every group in order, folded as far as it got; the last one of each group is `whole`.

        `begun` is where an earlier run stopped: inside its group, or behind it. `progress` gets the
        inputs done so far.
        """

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around everything the engine does."""
        yield


class Local:
    """This process, one shard after the other."""

    remote, here = False, 0

    def __init__(self, on_failure: OnFailure = "stop") -> None:
        self.on_failure = checked(on_failure)

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    def fold(
        self,
        job: Job[S],
        shard_groups: Sequence[Sequence[Shard]],
        resume_from: PartialFold[S] | None = None,
        progress: Tick | None = None,
    ) -> Iterator[PartialFold[S]]:
        done = before(shard_groups, resume_from)
        for number, shards, at in remaining(shard_groups, resume_from):
            for i, shard in enumerate(shards[at.shards :], at.shards + 1):
                # what progress itself raises is no failure of the shard
                outside: list[BaseException] = []
                tick = _watched(progress, done, outside)
                try:
                    new = job.run(shard.content(), tick)
                except Exception as error:
                    if error in outside:
                        raise
                    if self.on_failure == "stop":
                        raise stopped(shard, error) from error
                    at = PartialFold(
                        number, i, False, at.state, (*at.failed, Failure.of(shard, error))
                    )
                else:
                    at = PartialFold(
                        number,
                        i,
                        False,
                        new if at.state is None else job.merge(at.state, new),
                        at.failed,
                    )
                    del new  # not to be held beside the next one
                done += shard.size
                at.whole = i == len(shards)
                yield at

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        yield


def before(shard_groups: Sequence[Sequence[Shard]], resume_from: PartialFold[Any] | None) -> int:
    """The inputs that an earlier run has done."""
    if resume_from is None:
        return 0
    whole = sum(shard.size for shards in shard_groups[: resume_from.group] for shard in shards)
    return whole + sum(
        shard.size for shard in shard_groups[resume_from.group][: resume_from.shards]
    )


def remaining(
    shard_groups: Sequence[Sequence[Shard]], resume_from: PartialFold[S] | None
) -> Iterator[tuple[int, Sequence[Shard], PartialFold[S]]]:
    """The groups that are not whole yet, and how far each is folded."""
    for number, shards in enumerate(shard_groups):
        if resume_from is not None and (
            number < resume_from.group or (number == resume_from.group and resume_from.whole)
        ):
            continue
        mine = resume_from is not None and number == resume_from.group
        yield (
            number,
            shards,
            (
                resume_from
                if mine and resume_from is not None
                else PartialFold(number, 0, False, None)
            ),
        )


def checked(on_failure: str) -> OnFailure:
    if on_failure not in ("stop", "partial"):
        raise EigenlensError(
            f"where a shard fails a run can stop or end partial, not {on_failure!r}"
        )
    return on_failure  # type: ignore[return-value]


def _watched(progress: Tick | None, before: int, outside: list[BaseException]) -> Tick:
    def watched(done: int) -> None:
        try:
            if progress is not None:
                progress(before + done)
        except BaseException as error:
            outside.append(error)
            raise

    return watched


current_engine: ContextVar[Engine | None] = ContextVar("engine", default=None)


def choose(engine: Engine | None = None) -> Engine:
    """The engine that is given, else the one in force, else this process."""
    return engine or current_engine.get() or Local()


@contextlib.contextmanager
def use_engine(engine: Engine | None = None) -> Iterator[Engine]:
    """The engine to work with, as `choose` says, running.

    While it works this process computes with as many threads as the engine's own, so that all
    numbers are of one kind.
    """
    chosen = choose(engine)
    mine = torch.get_num_threads()
    mark = current_engine.set(chosen)
    try:
        with chosen.running():
            torch.set_num_threads(chosen.threads)
            yield chosen
    finally:
        torch.set_num_threads(mine)
        current_engine.reset(mark)
