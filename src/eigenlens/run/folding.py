"""A fold of shards into groups, as tasks of a Dask cluster."""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

from ..errors import EigenlensError, first_line
from .arrays import as_arrays, as_tensors
from .progress import say
from .shards import SHARDS_PER_GROUP, Failure, Job, PartialFold, Shard, Tick, stopped
from .tasks import Unfit, hold, merge, pack, run, unpack

RETRIES = 1
"""A shard whose code fails is tried so many times more; one whose worker dies, as often as Dask's
`allowed-failures`.
"""
_LETTERS = "ghijklmnopqrstuv"
"""For digits, which would end the words of a key."""
PATIENCE = 60
"""Seconds without a worker, or without an answer of a scheduler, before a word is said."""


@dataclass
class ShardGroup:
    """A group under way."""

    number: int
    size: int  # all shards of it
    shards: list[Shard]  # those that are still to be folded in
    futures: list[Any]  # of these
    start: Any  # the state that an earlier run got to, or None
    failed: tuple[Failure, ...]
    whole: Any = None  # the future of all of them folded
    again: bool = False  # whether a merge that lost its workers has been tried again


@dataclass
class Fold:
    """One fold of a job over groups, as tasks."""

    place: str  # the cluster, in words
    on_failure: str
    client: Any
    job: Job[Any]
    done: int
    progress: Tick | None
    shard_groups: deque[ShardGroup] = field(default_factory=deque)
    inside: dict[int, int] = field(default_factory=dict)  # shard → inputs done, of those under way
    # since when there is no worker, and how long that may last without a word
    lonely: float | None = None

    def __enter__(self) -> Fold:
        self.mark = "".join(_LETTERS[int(digit, 16)] for digit in uuid.uuid4().hex[:12])
        self.name = f"eigenlens-{self.mark}"
        with self._sending():
            packed = pack(self.job)
        self.held = self._submit(unpack, packed, what="job")
        self.client.subscribe_topic(self.name, self._hear)
        return self

    def __exit__(self, *error: Any) -> None:
        # what a lost scheduler is told would wait for it to come back
        if self.client.status == "running":
            with contextlib.suppress(Exception):
                self.client.unsubscribe_topic(self.name)
        # what is still held, by a traceback too, would still be worked on
        for group in self.shard_groups:
            group.futures.clear()
            group.start = group.whole = None
        # nobody wants these any more: what runs, runs out, and the rest is forgotten
        self.shard_groups.clear()
        del self.held

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        """Why something cannot be sent, in words."""
        try:
            yield
        except EigenlensError:
            raise
        except Exception as error:
            if self.client.status != "running":
                raise self._lost() from error
            raise EigenlensError(
                f"the work cannot be sent to {self.place}: {first_line(error)}"
            ) from error

    def _submit(self, function: Any, *args: Any, what: str, number: int = 0, **options: Any) -> Any:
        """A task. Dask learns from the words at the start of a key how long such tasks take, and
        moves those that pay to idle workers: what shards take is learned of this fold's shards
        alone, not of merges nor of shards of other models.
        """
        key = f"eigenlens-{what}-{self.mark}-{number}-{uuid.uuid4().hex[:8]}"
        with self._sending():
            return self.client.submit(function, *args, key=key, pure=False, **options)

    def full(self, more: int) -> bool:
        """Whether so many shards more would be too many under way: each waits in the memory of some
        worker.
        """
        under_way = sum(len(group.futures) for group in self.shard_groups)
        return (
            bool(self.shard_groups)
            and under_way + more > 2 * max(1, self._workers()) + SHARDS_PER_GROUP
        )

    def _workers(self) -> int:
        try:
            return len(self.client.scheduler_info(n_workers=-1)["workers"])
        except Exception:
            return 1  # the scheduler does not answer; whether it is lost is found out elsewhere

    def submit(self, number: int, shards: Sequence[Shard], at: PartialFold[Any]) -> None:
        start = None if at.state is None else self._submit(hold, as_arrays(at.state), what="begun")
        group = ShardGroup(number, len(shards), [], [], start, at.failed)
        for shard in shards[at.shards :]:
            try:
                content = shard.content()
            except Exception as error:
                if self.on_failure == "stop":
                    raise stopped(shard, error) from error
                group.failed += (Failure.of(shard, error),)
                self.done += shard.size
            else:
                group.shards.append(shard)
                group.futures.append(self._shard(shard, content))
        self._fold(group)
        self.shard_groups.append(group)

    def _shard(self, shard: Shard, content: Any) -> Any:
        from .._version import __version__

        task = (self.held, shard.number, content, self.name, __version__)
        return self._submit(
            run, *task, what="shard", number=shard.number, retries=RETRIES, priority=-shard.number
        )

    def _fold(self, group: ShardGroup) -> None:
        """One merge after the other, in the order of the shards."""
        parts = [*([] if group.start is None else [group.start]), *group.futures]
        whole = parts[0] if parts else None
        for part in parts[1:]:
            whole = self._submit(
                merge, self.held, whole, part, what="merge", number=group.number, priority=1
            )
        group.whole = whole

    def next(self) -> PartialFold[Any]:
        """The first group under way, when it is whole."""
        group = self.shard_groups[0]
        while group.whole is not None:
            self._settled([group.whole])
            if group.whole.status == "finished":
                break
            self._judge(group)
        try:
            state = None if group.whole is None else as_tensors(group.whole.result(), own=True)
        except Exception as error:
            raise self._lost() from error
        self.shard_groups.popleft()
        self.done += sum(shard.size for shard in group.shards)
        for shard in group.shards:
            self.inside.pop(shard.number, None)
        self._show()
        return PartialFold(group.number, group.size, True, state, group.failed)

    def _settled(self, futures: Sequence[Any]) -> None:
        """Wait until each is finished or has failed.

        What a dead worker had is computed again; a scheduler does not return.
        """
        from distributed import wait

        while any(future.status not in {"finished", "error"} for future in futures):
            try:
                wait(futures, timeout=1)
            except TimeoutError:
                pass
            except (CancelledError, ValueError) as error:
                # a client that has given its scheduler up is closed, and Dask then finds none
                raise self._lost() from error
            self._show()
            if self.client.status not in {"running", "connecting"}:
                raise self._lost()
            self._watch()

    def _watch(self) -> None:
        """Say, once each time, that no worker is left to wait for."""
        if self._workers():
            self.lonely = None
        elif self.lonely is None:
            self.lonely = time.monotonic() + PATIENCE
        elif time.monotonic() > self.lonely:
            say(
                f"{self.place} has no worker left; waiting for one (an interrupted run goes on with"
                " --resume)"
            )
            self.lonely = math.inf

    def _judge(self, group: ShardGroup) -> None:
        """What failed: single shards, which are named, or everything."""
        failed = {
            i: future.exception()
            for i, future in enumerate(group.futures)
            if future.status == "error"
        }
        for error in failed.values():
            if isinstance(error, Unfit):
                raise error
        # a merge on a worker that died, or the news of a shard is still on its way
        if not failed and not group.again:
            group.again = True
            self._fold(group)
            return
        if not failed or self.held.status == "error":
            error = (
                self.held.exception() if self.held.status == "error" else group.whole.exception()
            )
            raise EigenlensError(
                f"the workers of {self.place} cannot do this work: {_describe(error)}"
            ) from error
        if killed := [i for i, error in failed.items() if _death(error)]:
            guilty = self._alone(group, killed)
            failed = {i: error for i, error in failed.items() if i in guilty or i not in killed}
            if not failed:
                self._fold(group)
                return
        if self.on_failure == "stop":
            first = min(failed)
            raise stopped(group.shards[first], _describe(failed[first])) from failed[first]
        group.failed += tuple(
            Failure.of(group.shards[i], _describe(error)) for i, error in failed.items()
        )
        kept = [i for i in range(len(group.futures)) if i not in failed]
        self.done += sum(group.shards[i].size for i in failed)
        group.shards, group.futures = (
            [group.shards[i] for i in kept],
            [group.futures[i] for i in kept],
        )
        self._fold(group)

    def _alone(self, group: ShardGroup, suspects: Sequence[int]) -> set[int]:
        """Which of these shards kill their worker: Dask suspects every one that waited on a worker
        that died.

        When all else is done each of them runs by itself. One that passes may be lost again with
        the worker of the next; if Dask then gives it up, it is looked at once more.
        """
        self._settled(
            [
                future
                for other in self.shard_groups
                for future in (*other.futures, other.whole)
                if future is not None
            ]
        )
        guilty = set()
        for i in suspects:
            group.futures[i] = self._shard(group.shards[i], group.shards[i].content())
            self._settled([group.futures[i]])
            if group.futures[i].status == "error":
                guilty.add(i)
        return guilty

    def _lost(self) -> EigenlensError:
        return EigenlensError(
            f"{self.place} is lost; what was merged is kept where the work has a folder: the same"
            " command with --resume goes on from there"
        )

    def _hear(self, event: tuple[Any, dict[str, int]]) -> None:
        """From a worker: so many inputs of a shard are done."""
        _, message = event
        self.inside[message["shard"]] = message["done"]

    def _show(self) -> None:
        if self.progress is not None:
            under_way = {
                shard.number: shard.size for group in self.shard_groups for shard in group.shards
            }
            for number in [number for number in list(self.inside) if number not in under_way]:
                self.inside.pop(number, None)  # a late word of a shard that is folded
            self.progress(
                self.done
                + sum(
                    min(done, under_way.get(number, 0))
                    for number, done in list(self.inside.items())
                )
            )


def _describe(error: BaseException) -> BaseException | str:
    """An error of a task in words: Dask tells the death of a worker in three lines."""
    if _death(error):
        times = getattr(error, "allowed_failures", 3)
        return f"its worker died each of the {times + 1} times that it was tried alone"
    return error


def _death(error: BaseException) -> bool:
    return type(error).__name__ == "KilledWorker"
