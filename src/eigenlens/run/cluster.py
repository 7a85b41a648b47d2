"""The Dask engine: shards and merges as tasks of a cluster, started here or joined."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
import tempfile
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ..errors import EigenlensError
from .arrays import as_arrays, as_tensors
from .engine import IN_FORCE, OnFailure, before, checked, remaining
from .progress import say
from .shards import FAN, Failure, Folded, Job, Shard, Tick, stopped

S = TypeVar("S")
RETRIES = 1
"""A shard whose code fails is tried so many times more; one whose worker dies, as often as Dask's `allowed-failures`."""
UNGUARDED = 'a script that starts workers is read again by each of them: put what it does below if __name__ == "__main__":'
PATIENCE = 60
"""Seconds to wait for the first worker, and for a scheduler to answer."""


class Unfit(EigenlensError):
    """A worker that cannot do any of the work: never a fault of the shard."""


class Dask:
    """Workers of a Dask cluster: `workers` processes of this machine, or those of the `scheduler` at an address.

    A joined cluster with TLS is described by Dask's own settings (`distributed.comm.tls`). Each worker loads the model
    once and computes with `threads` threads, one shard at a time. Trunks are folded by the workers too; this process gets
    whole trunks only, a bounded number of shards is under way, and lost work is done again. Used alone for one call, or as
    a context for all calls inside it, which then share the cluster and its loaded models:

    >>> with Dask(workers=4):
    ...     study("minilm", "book.txt", "s1")
    """

    remote = True

    def __init__(
        self, workers: int | None = None, scheduler: str | None = None, threads: int = 1, on_failure: OnFailure = "stop"
    ) -> None:
        if (workers is None) == (scheduler is None):
            raise EigenlensError("a Dask engine needs a number of workers to start here, or the address of a scheduler to join")
        if workers is not None and workers < 1:
            raise EigenlensError(f"a cluster needs at least 1 worker, not {workers}")
        if threads < 1:
            raise EigenlensError(f"a worker needs at least 1 thread, not {threads}")
        self.workers, self.scheduler, self.threads = workers, scheduler, threads
        self.here = workers or 0
        self.on_failure = checked(on_failure)
        self._client: Any = None
        self._entered: list[contextlib.ExitStack] = []
        if workers and getattr(multiprocessing.current_process(), "_inheriting", False):
            raise SystemExit(f"eigenlens: {UNGUARDED}")

    def __enter__(self) -> Dask:
        stack = contextlib.ExitStack()
        stack.enter_context(self.running())
        mark = IN_FORCE.set(self)
        stack.callback(lambda: IN_FORCE.reset(mark))
        self._entered.append(stack)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().close()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The cluster is up while the outermost of these lasts."""
        if self._client is not None:
            yield
            return
        with self._connected() as self._client:
            try:
                yield
            finally:
                self._client = None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        try:
            import dask
            from distributed import Client, LocalCluster
        except ImportError as error:
            raise EigenlensError("the engine dask is not installed; install it with: pip install 'eigenlens[dask]'") from error
        settings: dict[str, Any] = {
            "distributed.logging.distributed": "error",
            "distributed.admin.large-graph-warning-threshold": "1TB",
        }
        with dask.config.set(settings), _quiet(), contextlib.ExitStack() as stack:
            try:
                if self.scheduler is None:
                    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="eigenlens-workers-"))
                    options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
                    with _uninterrupted():
                        here = LocalCluster(n_workers=self.workers, local_directory=scratch, **options)
                    client = Client(stack.enter_context(here))
                else:
                    client = Client(self.scheduler, timeout=PATIENCE / 6)
            except (OSError, TimeoutError, ValueError, TypeError, ImportError, RuntimeError) as error:
                if self.scheduler:
                    where = f"the scheduler at {self.scheduler}"
                    hint = "; set distributed.comm.tls in Dask's settings" if "ssl_context" in str(error) else ""
                    raise EigenlensError(f"{where} could not be reached: {_first_line(error)}{hint}") from error
                hint = f" ({UNGUARDED})" if "Nanny" in str(error) else ""
                raise EigenlensError(f"the workers could not be started: {_first_line(error)}{hint}") from error
            stack.callback(_close, client)
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except (TimeoutError, OSError) as error:
                raise EigenlensError(f"no worker has joined {self._place} in {PATIENCE} seconds; start some") from error
            yield client

    @property
    def _place(self) -> str:
        return f"the scheduler at {self.scheduler}" if self.scheduler else "the cluster of this machine"

    def fold(
        self, job: Job[S], trunks: Sequence[Sequence[Shard]], begun: Folded[S] | None = None, progress: Tick | None = None
    ) -> Iterator[Folded[S]]:
        if self._client is None:
            raise EigenlensError("the Dask engine is not running; use it with `with`, or give it to the call as its engine")
        with _Fold(self, self._client, job, before(trunks, begun), progress) as fold:
            for number, shards, at in remaining(trunks, begun):
                while fold.full(len(shards)):
                    yield fold.next()
                fold.submit(number, shards, at)
            while fold.trunks:
                yield fold.next()


@dataclass
class _Trunk:
    """A trunk under way."""

    number: int
    size: int  # all shards of it
    shards: list[Shard]  # those that are still to be folded in
    futures: list[Any]  # of these
    start: Any  # the state that an earlier run got to, or None
    failed: tuple[Failure, ...]
    whole: Any = None  # the future of all of them folded
    again: bool = False  # whether a merge that lost its workers has been tried again


@dataclass
class _Fold:
    """One fold of a job over trunks, as tasks."""

    engine: Dask
    client: Any
    job: Job[Any]
    done: int
    progress: Tick | None
    trunks: deque[_Trunk] = field(default_factory=deque)
    inside: dict[int, int] = field(default_factory=dict)  # shard → inputs done, of those under way
    lonely: float | None = None  # since when there is no worker, and how long that may last without a word

    def __enter__(self) -> _Fold:
        self.name = f"eigenlens-{uuid.uuid4().hex[:12]}"
        self.held = self._submit(_hold, self.job, what="job")
        self.client.subscribe_topic(self.name, self._hear)
        return self

    def __exit__(self, *error: Any) -> None:
        if self.client.status == "running":  # what a lost scheduler is told would wait for it to come back
            with contextlib.suppress(Exception):
                self.client.unsubscribe_topic(self.name)
        self.trunks.clear()  # nobody wants these any more: what runs, runs out, and the rest is forgotten
        del self.held

    def _submit(self, function: Any, *args: Any, what: str, **options: Any) -> Any:
        try:
            return self.client.submit(function, *args, key=f"{self.name}-{what}-{uuid.uuid4().hex[:8]}", pure=False, **options)
        except EigenlensError:
            raise
        except Exception as error:
            if self.client.status != "running":
                raise self._lost() from error
            raise EigenlensError(f"the work cannot be sent to {self.engine._place}: {_first_line(error)}") from error

    def full(self, more: int) -> bool:
        """Whether so many shards more would be too many under way: each waits in the memory of some worker."""
        under_way = sum(len(trunk.futures) for trunk in self.trunks)
        return bool(self.trunks) and under_way + more > 2 * max(1, self._workers()) + FAN

    def _workers(self) -> int:
        try:
            return len(self.client.scheduler_info(n_workers=-1)["workers"])
        except Exception:
            return 1  # the scheduler does not answer; whether it is lost is found out elsewhere

    def submit(self, number: int, shards: Sequence[Shard], at: Folded[Any]) -> None:
        start = None if at.state is None else self._submit(_hold, as_arrays(at.state), what="begun")
        trunk = _Trunk(number, len(shards), [], [], start, at.failed)
        for shard in shards[at.shards :]:
            try:
                content = shard.content()
            except Exception as error:
                if self.engine.on_failure == "stop":
                    raise stopped(shard, error) from error
                trunk.failed += (Failure.of(shard, error),)
                self.done += shard.size
            else:
                trunk.shards.append(shard)
                trunk.futures.append(self._shard(shard, content))
        self._fold(trunk)
        self.trunks.append(trunk)

    def _shard(self, shard: Shard, content: Any) -> Any:
        from .. import __version__

        task = (self.held, shard.number, content, self.name, __version__)
        return self._submit(_run, *task, what=f"shard-{shard.number}", retries=RETRIES, priority=-shard.number)

    def _fold(self, trunk: _Trunk) -> None:
        """One merge after the other, in the order of the shards."""
        parts = [*([] if trunk.start is None else [trunk.start]), *trunk.futures]
        whole = parts[0] if parts else None
        for part in parts[1:]:
            whole = self._submit(_merge, self.held, whole, part, what=f"merge-{trunk.number}", priority=1)
        trunk.whole = whole

    def next(self) -> Folded[Any]:
        """The first trunk under way, when it is whole."""
        trunk = self.trunks[0]
        while trunk.whole is not None:
            self._settled([trunk.whole])
            if trunk.whole.status == "finished":
                break
            self._judge(trunk)
        try:
            state = None if trunk.whole is None else as_tensors(trunk.whole.result(), own=True)
        except Exception as error:
            raise self._lost() from error
        self.trunks.popleft()
        self.done += sum(shard.size for shard in trunk.shards)
        for shard in trunk.shards:
            self.inside.pop(shard.number, None)
        self._show()
        return Folded(trunk.number, trunk.size, True, state, trunk.failed)

    def _settled(self, futures: Sequence[Any]) -> None:
        """Wait until each is finished or has failed. What a dead worker had is computed again; a scheduler does not return."""
        from distributed import wait

        while any(future.status not in {"finished", "error"} for future in futures):
            try:
                wait(futures, timeout=1)
            except TimeoutError:
                pass
            except CancelledError as error:
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
            say(f"{self.engine._place} has no worker left; waiting for one (an interrupted run goes on with --resume)")
            self.lonely = math.inf

    def _judge(self, trunk: _Trunk) -> None:
        """What failed: single shards, which are named, or everything."""
        failed = {i: future.exception() for i, future in enumerate(trunk.futures) if future.status == "error"}
        for error in failed.values():
            if isinstance(error, Unfit):
                raise error
        if not failed and not trunk.again:  # a merge on a worker that died, or the news of a shard is still on its way
            trunk.again = True
            self._fold(trunk)
            return
        if not failed or self.held.status == "error":
            error = self.held.exception() if self.held.status == "error" else trunk.whole.exception()
            raise EigenlensError(f"the workers of {self.engine._place} cannot do this work: {_told(error)}") from error
        if killed := [i for i, error in failed.items() if _death(error)]:
            guilty = self._alone(trunk, killed)
            failed = {i: error for i, error in failed.items() if i in guilty or i not in killed}
            if not failed:
                self._fold(trunk)
                return
        if self.engine.on_failure == "stop":
            first = min(failed)
            raise stopped(trunk.shards[first], _told(failed[first])) from failed[first]
        trunk.failed += tuple(Failure.of(trunk.shards[i], _told(error)) for i, error in failed.items())
        kept = [i for i in range(len(trunk.futures)) if i not in failed]
        self.done += sum(trunk.shards[i].size for i in failed)
        trunk.shards, trunk.futures = [trunk.shards[i] for i in kept], [trunk.futures[i] for i in kept]
        self._fold(trunk)

    def _alone(self, trunk: _Trunk, suspects: Sequence[int]) -> set[int]:
        """Which of these shards kill their worker: Dask suspects every one that waited on a worker that died.

        When all else is done each of them runs by itself. One that passes may be lost again with the worker of the next;
        if Dask then gives it up, it is looked at once more.
        """
        self._settled([future for other in self.trunks for future in (*other.futures, other.whole) if future is not None])
        guilty = set()
        for i in suspects:
            trunk.futures[i] = self._shard(trunk.shards[i], trunk.shards[i].content())
            self._settled([trunk.futures[i]])
            if trunk.futures[i].status == "error":
                guilty.add(i)
        return guilty

    def _lost(self) -> EigenlensError:
        return EigenlensError(
            f"{self.engine._place} is lost; what was merged is kept where the work has a folder: the same command "
            "with --resume goes on from there"
        )

    def _hear(self, event: tuple[Any, dict[str, int]]) -> None:
        """From a worker: so many inputs of a shard are done."""
        _, said = event
        self.inside[said["shard"]] = said["done"]

    def _show(self) -> None:
        if self.progress is not None:
            under_way = {shard.number: shard.size for trunk in self.trunks for shard in trunk.shards}
            for number in [number for number in list(self.inside) if number not in under_way]:
                self.inside.pop(number, None)  # a late word of a shard that is folded
            self.progress(self.done + sum(min(done, under_way.get(number, 0)) for number, done in list(self.inside.items())))


_ONE_AT_A_TIME = threading.Lock()
"""A worker may have several threads; a model runs in one of them."""


def _hold(content: Any) -> Any:
    """A task whose result others need. The scheduler keeps what it is made from, so it outlives the loss of all workers."""
    return content


def _run(job: Job[Any], number: int, content: Any, topic: str, version: str) -> Any:
    """The task of a shard."""
    from distributed import get_worker

    from .. import __version__

    worker = get_worker()
    if version != __version__:
        raise Unfit(
            f"the worker at {worker.address} has eigenlens {__version__}, and this run is of {version}; "
            "install the same everywhere"
        )
    with _ONE_AT_A_TIME:
        torch.set_num_threads(job.threads)
        return as_arrays(job.run(content, lambda done: worker.log_event(topic, {"shard": number, "done": done})))


def _merge(job: Job[Any], mine: Any, theirs: Any) -> Any:
    """The task of a merge; its inputs may be needed again, and stay as they are."""
    torch.set_num_threads(job.threads)
    return as_arrays(job.merge(as_tensors(mine, own=True), as_tensors(theirs)))


def _told(error: BaseException) -> BaseException | str:
    """An error of a task in words: Dask tells the death of a worker in three lines."""
    if _death(error):
        times = getattr(error, "allowed_failures", 3)
        return f"its worker died each of the {times + 1} times that it was tried alone"
    return error


def _death(error: BaseException) -> bool:
    return type(error).__name__ == "KilledWorker"


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started now do not hear an interruption from the keyboard: this one ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _close(client: Any) -> None:
    with contextlib.suppress(Exception):
        client.close(timeout=5)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0][:300]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What Dask says of lost connections is told in one sentence of ours."""
    import logging

    names = ("distributed", "distributed.client", "distributed.core", "distributed.scheduler", "distributed.comm", "tornado")
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="distributed")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
