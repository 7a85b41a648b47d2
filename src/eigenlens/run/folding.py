"""Fold shards into shard groups, as tasks of a Dask cluster.

What happens, in order: `Fold` sends the job once. `submit` sends a shard group: one task per shard,
followed by one merge after the other. `next` waits until the oldest group is complete and fetches
its state. If something fails, `_handle_failure` finds out whether a shard is at fault, a lost
worker, or the work itself.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

from ..errors import EigenlensError, first_line
from ..shell import option
from .arrays import as_arrays, as_tensors
from .progress import print_line
from .shards import SHARDS_PER_GROUP, Failure, Job, PartialFold, Shard, Tick, stop_error
from .tasks import Unfit, hold_content, merge, pack_work, run_shard, unpack_work

RETRIES = 1
"""How often a shard is tried again if its code fails.

If its worker dies, Dask's `allowed-failures` decides.
"""
_LETTERS = "ghijklmnopqrstuv"
"""Replacements for digits, because Dask ends the words of a key at a digit."""
PATIENCE = 60
"""Seconds to wait for a worker or the scheduler before a message is shown."""


@dataclass
class ShardGroup:
    """A shard group that was sent and is not complete."""

    number: int
    size: int  # all shards of it
    shards: list[Shard]  # those that are still to be folded in
    futures: list[Any]  # of these, in the same order
    start: Any  # the future of the state that an earlier run got to, or None
    failed: tuple[Failure, ...]
    folded: Any = None  # the future of the state with all shards; None where there is no state
    merged_again: bool = False  # whether its merges were sent a second time


@dataclass
class Fold:
    """One fold of a job over shard groups, as tasks."""

    cluster: str  # the cluster, in words
    on_failure: str
    client: Any
    job: Job[Any]
    done: int  # inputs that are folded, or given up
    progress: Tick | None
    shard_groups: deque[ShardGroup] = field(default_factory=deque)  # under way, the oldest first
    inside: dict[int, int] = field(default_factory=dict)  # shard → its inputs done, while it runs
    # when to say that there is no worker; None while there is one
    say_no_worker_at: float | None = None

    def __enter__(self) -> Fold:
        self.mark = "".join(_LETTERS[int(digit, 16)] for digit in uuid.uuid4().hex[:12])
        self.name = f"eigenlens-{self.mark}"
        with self._sending():
            packed = pack_work(self.job)
        self.sent_job = self._submit(unpack_work, packed, what="job")
        self.client.subscribe_topic(self.name, self._hear)
        return self

    def __exit__(self, *error: Any) -> None:
        # messages to a lost scheduler would wait for it to come back
        if self.client.status == "running":
            with contextlib.suppress(Exception):
                self.client.unsubscribe_topic(self.name)
        # what is still held, by a traceback too, would still be worked on
        for group in self.shard_groups:
            group.futures.clear()
            group.start = group.folded = None
        # nobody wants these any more: what runs, runs out, and the rest is forgotten
        self.shard_groups.clear()
        del self.sent_job

    def full(self, more: int) -> bool:
        """Whether so many more shards would be too many: each takes memory of a worker."""
        under_way = sum(len(group.futures) for group in self.shard_groups)
        most = 2 * max(1, self._workers()) + SHARDS_PER_GROUP
        return bool(self.shard_groups) and under_way + more > most

    def submit(self, number: int, shards: Sequence[Shard], at: PartialFold[Any]) -> None:
        """Send a shard group, starting where an earlier run stopped."""
        start = (
            None
            if at.state is None
            else self._submit(hold_content, as_arrays(at.state), what="start")
        )
        group = ShardGroup(number, len(shards), [], [], start, at.failed)
        for shard in shards[at.shards :]:
            try:
                content = shard.content()
            except Exception as error:
                if self.on_failure == "stop":
                    raise stop_error(shard, error) from error
                group.failed += (Failure.of(shard, error),)
                self.done += shard.size
            else:
                group.shards.append(shard)
                group.futures.append(self._shard(shard, content))
        self._send_merges(group)
        self.shard_groups.append(group)

    def next(self) -> PartialFold[Any]:
        """Return the oldest shard group that was sent, when it is complete."""
        group = self.shard_groups[0]
        while group.folded is not None:
            self._wait_for([group.folded])
            if group.folded.status == "finished":
                break
            self._handle_failure(group)
        try:
            state = None if group.folded is None else as_tensors(group.folded.result(), own=True)
        except Exception as error:
            raise self._lost() from error
        self.shard_groups.popleft()
        self.done += sum(shard.size for shard in group.shards)
        for shard in group.shards:
            self.inside.pop(shard.number, None)
        self._show()
        return PartialFold(group.number, group.size, True, state, group.failed)

    def _handle_failure(self, group: ShardGroup) -> None:
        """Send lost tasks again, give up failing shards, or raise if the fold is impossible."""
        errors = {
            i: future.exception()
            for i, future in enumerate(group.futures)
            if future.status == "error"
        }
        for error in errors.values():
            if isinstance(error, Unfit):
                raise error
        # a merge on a worker that died, or the news of a shard is still on its way
        if not errors and not group.merged_again:
            group.merged_again = True
            self._send_merges(group)
            return
        if not errors or self.sent_job.status == "error":
            failed = self.sent_job if self.sent_job.status == "error" else group.folded
            error = failed.exception()
            raise EigenlensError(
                f"the workers of {self.cluster} cannot do this work: {_describe(error)}"
            ) from error
        errors = self._without_innocent(group, errors)
        if errors:
            self._give_up(group, errors)
        self._send_merges(group)

    def _without_innocent(
        self, group: ShardGroup, errors: Mapping[int, BaseException]
    ) -> dict[int, BaseException]:
        """Return the errors without those of shards that only waited on a worker that died.

        Dask suspects all shards of such a worker.

        When everything else is done, each suspect runs by itself. A shard that passes may be lost
        again with the worker of the next; if Dask then gives it up, it is tried once more.
        """
        suspects = [i for i, error in errors.items() if _is_death(error)]
        if not suspects:
            return dict(errors)
        self._wait_for(
            [
                future
                for other in self.shard_groups
                for future in (*other.futures, other.folded)
                if future is not None
            ]
        )
        guilty = set()
        for i in suspects:
            group.futures[i] = self._shard(group.shards[i], group.shards[i].content())
            self._wait_for([group.futures[i]])
            if group.futures[i].status == "error":
                guilty.add(i)
        return {i: error for i, error in errors.items() if i in guilty or i not in suspects}

    def _give_up(self, group: ShardGroup, errors: Mapping[int, BaseException]) -> None:
        """Leave out the shards that failed, or end the fold at the first of them."""
        if self.on_failure == "stop":
            first = min(errors)
            raise stop_error(group.shards[first], _describe(errors[first])) from errors[first]
        group.failed += tuple(
            Failure.of(group.shards[i], _describe(error)) for i, error in errors.items()
        )
        self.done += sum(group.shards[i].size for i in errors)
        kept = [i for i in range(len(group.futures)) if i not in errors]
        group.shards = [group.shards[i] for i in kept]
        group.futures = [group.futures[i] for i in kept]

    def _shard(self, shard: Shard, content: Any) -> Any:
        """Return the task that runs a shard."""
        from .._version import __version__

        task = (self.sent_job, shard.number, content, self.name, __version__)
        return self._submit(
            run_shard,
            *task,
            what="shard",
            number=shard.number,
            retries=RETRIES,
            priority=-shard.number,
        )

    def _send_merges(self, group: ShardGroup) -> None:
        """Merge one state after the other, in the order of the shards."""
        parts = [*([] if group.start is None else [group.start]), *group.futures]
        folded = parts[0] if parts else None
        for part in parts[1:]:
            folded = self._submit(
                merge, self.sent_job, folded, part, what="merge", number=group.number, priority=1
            )
        group.folded = folded

    def _submit(self, function: Any, *args: Any, what: str, number: int = 0, **options: Any) -> Any:
        """Return a task whose key says what it is.

        From the words at the start of a key Dask learns how long such tasks take, and moves tasks
        to idle workers if that pays. These words keep the shards of this fold apart from merges and
        from shards of other models.
        """
        key = f"eigenlens-{what}-{self.mark}-{number}-{uuid.uuid4().hex[:8]}"
        with self._sending():
            return self.client.submit(function, *args, key=key, pure=False, **options)

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        """Say why something cannot be sent."""
        try:
            yield
        except EigenlensError:
            raise
        except Exception as error:
            if self.client.status != "running":
                raise self._lost() from error
            raise EigenlensError(
                f"the work cannot be sent to {self.cluster}: {first_line(error)}"
            ) from error

    def _wait_for(self, futures: Sequence[Any]) -> None:
        """Wait until each task has finished or failed.

        Work that was lost with a worker is computed again; a lost scheduler does not return.
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
            self._watch_workers()

    def _watch_workers(self) -> None:
        """Say, once each time, that there is no worker left."""
        if self._workers():
            self.say_no_worker_at = None
        elif self.say_no_worker_at is None:
            self.say_no_worker_at = time.monotonic() + PATIENCE
        elif time.monotonic() > self.say_no_worker_at:
            print_line(
                f"{self.cluster} has no worker left; waiting for one (after an interruption, go on"
                f" with {option('resume')})"
            )
            self.say_no_worker_at = math.inf

    def _workers(self) -> int:
        try:
            return len(self.client.scheduler_info(n_workers=-1)["workers"])
        except Exception:
            return 1  # the scheduler does not answer; whether it is lost is found out elsewhere

    def _lost(self) -> EigenlensError:
        return EigenlensError(
            f"the connection to {self.cluster} is lost; if the work has a folder, what was merged"
            f" is kept there: repeat the call with {option('resume')} to go on"
        )

    def _hear(self, event: tuple[Any, dict[str, int]]) -> None:
        """Receive from a worker how many inputs of a shard are done."""
        _, message = event
        self.inside[message["shard"]] = message["done"]

    def _show(self) -> None:
        """Call `progress` with the inputs done, including those of shards that still run."""
        if self.progress is None:
            return
        under_way = {
            shard.number: shard.size for group in self.shard_groups for shard in group.shards
        }
        for number in [number for number in list(self.inside) if number not in under_way]:
            self.inside.pop(number, None)  # a late word of a shard that is folded
        self.progress(
            self.done
            + sum(min(done, under_way.get(number, 0)) for number, done in list(self.inside.items()))
        )


def _describe(error: BaseException) -> BaseException | str:
    """Describe a task's error; Dask reports the death of a worker in three lines."""
    if _is_death(error):
        times = getattr(error, "allowed_failures", 3)
        return f"its worker died each of the {times + 1} times that this shard was tried alone"
    return error


def _is_death(error: BaseException) -> bool:
    return type(error).__name__ == "KilledWorker"
