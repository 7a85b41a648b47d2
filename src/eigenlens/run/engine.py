"""Engines: what runs the work on the shards.

An engine runs a job on every shard and folds the states of a shard group into one, shard after
shard. `Local` is this process; `Dask`, in `cluster.py`, sends the same work to workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeVar

import torch

from ..errors import EigenlensError
from .shards import Failure, Job, PartialFold, Recycles, Shard, Tick, stop_error

S = TypeVar("S")
OnFailure = Literal["stop", "partial"]
"""What to do when a shard fails every time: stop the run, or give a partial result."""


class Engine(Protocol):
    """Folds the shards of every shard group into one state.

    The numbers depend only on the shards and on `threads`.
    """

    remote: bool
    """Whether other processes do the work; they load the model themselves."""
    here: int
    """How many processes it starts on this machine."""
    on_failure: OnFailure

    @property
    def threads(self) -> int:
        """CPU threads of each process that computes."""

    def fold(
        self,
        job: Job[S],
        shard_groups: Sequence[Sequence[Shard]],
        resume_from: PartialFold[S] | None = None,
        progress: Tick | None = None,
    ) -> Iterator[PartialFold[S]]:
        """Yield the shard groups in order, each as far as it is folded.

        The last state of each group is `complete`.

        `resume_from` is where an earlier run stopped, inside a group or after it. `progress` is
        called with the number of inputs that are done.
        """

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A context around everything the engine does."""
        yield


class Local:
    """Compute in this process, one shard after the other.

    Parameters
    ----------
    on_failure : {"stop", "partial"}, default "stop"
        What to do when a shard fails every time: stop the run, or return a partial result.
    """

    remote, here = False, 0

    def __init__(self, on_failure: OnFailure = "stop") -> None:
        self.on_failure = check_on_failure(on_failure)

    @property
    def threads(self) -> int:
        """CPU threads of this process."""
        return torch.get_num_threads()

    def fold(
        self,
        job: Job[S],
        shard_groups: Sequence[Sequence[Shard]],
        resume_from: PartialFold[S] | None = None,
        progress: Tick | None = None,
    ) -> Iterator[PartialFold[S]]:
        """Yield the shard groups in order, each as far as it is folded; see `Engine.fold`."""
        done = inputs_done(shard_groups, resume_from)
        for number, shards, at in remaining(shard_groups, resume_from):
            for i, shard in enumerate(shards[at.shards :], at.shards + 1):
                state, failed = at.state, at.failed
                tick = _Watched(progress, done)
                try:
                    new = job.run(shard.content(), tick)
                except Exception as error:
                    if error is tick.raised:  # no failure of the shard
                        raise
                    if self.on_failure == "stop":
                        raise stop_error(shard, error) from error
                    failed = (*failed, Failure.of(shard, error))
                else:
                    if state is None:
                        state = new
                    else:
                        state = job.merge(state, new)
                        if isinstance(job, Recycles) and i < len(shards):
                            job.recycle(new)
                    del new  # not to be held beside the next one
                done += shard.size
                at = PartialFold(number, i, i == len(shards), state, failed)
                del state
                yield at

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Do nothing: there is nothing to start or stop."""
        yield


def inputs_done(
    shard_groups: Sequence[Sequence[Shard]], resume_from: PartialFold[Any] | None
) -> int:
    """Return the number of inputs that an earlier run has done."""
    if resume_from is None:
        return 0
    before, inside = shard_groups[: resume_from.group], shard_groups[resume_from.group]
    shards = [*(shard for group in before for shard in group), *inside[: resume_from.shards]]
    return sum(shard.size for shard in shards)


def remaining(
    shard_groups: Sequence[Sequence[Shard]], resume_from: PartialFold[S] | None
) -> Iterator[tuple[int, Sequence[Shard], PartialFold[S]]]:
    """Yield the incomplete shard groups: number, shards, and how far each is folded."""
    first = 0
    if resume_from is not None:
        first = resume_from.group + resume_from.complete
    for number, shards in enumerate(shard_groups[first:], first):
        if resume_from is not None and number == resume_from.group:
            yield number, shards, resume_from
        else:
            yield number, shards, PartialFold(number, 0, False, None)


def check_on_failure(on_failure: str) -> OnFailure:
    if on_failure not in ("stop", "partial"):
        raise EigenlensError(f"on_failure must be 'stop' or 'partial', not {on_failure!r}")
    return on_failure  # type: ignore[return-value]


class _Watched:
    """Call `progress` for a shard that begins after `before` inputs.

    `raised` is what `progress` itself raised.
    """

    def __init__(self, progress: Tick | None, before: int) -> None:
        self.progress, self.before = progress, before
        self.raised: BaseException | None = None

    def __call__(self, done: int) -> None:
        try:
            if self.progress is not None:
                self.progress(self.before + done)
        except BaseException as error:
            self.raised = error
            raise


current_engine: ContextVar[Engine | None] = ContextVar("engine", default=None)


def choose_engine(engine: Engine | None = None) -> Engine:
    """Return the given engine, else the current one, else this process."""
    return engine or current_engine.get() or Local()


@contextlib.contextmanager
def use_engine(engine: Engine | None = None) -> Iterator[Engine]:
    """Run the engine that `choose_engine` returns while the block runs.

    Meanwhile this process uses as many threads as the engine, so that all numbers are computed the
    same way.
    """
    chosen = choose_engine(engine)
    mine = torch.get_num_threads()
    mark = current_engine.set(chosen)
    try:
        with chosen.running():
            torch.set_num_threads(chosen.threads)
            yield chosen
    finally:
        torch.set_num_threads(mine)
        current_engine.reset(mark)
