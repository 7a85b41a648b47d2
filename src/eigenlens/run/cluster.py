"""The Dask engine: shards and merges run as tasks of a cluster.

The cluster is started here, or an existing one is joined.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from ..errors import EigenlensError, first_line
from ..extras import needs
from .engine import OnFailure, check_on_failure, current_engine, inputs_done, remaining
from .folding import PATIENCE, Fold
from .shards import Job, PartialFold, Shard, Tick

S = TypeVar("S")
UNGUARDED = (
    "each worker reads the script that starts it again: put the work of the script below"
    ' if __name__ == "__main__":'
)


class Dask:
    """Workers of a Dask cluster, of this machine or of a running scheduler.

    Each worker loads the model once and computes one shard at a time. The workers also fold shards
    into groups, so that this process receives only complete groups. A bounded number of shards is
    in memory at a time, and lost work is done again. To join a cluster with TLS, use Dask's own
    settings (`distributed.comm.tls`). Give the engine to one call, or use it as a context for all
    calls inside it, which then share the cluster and its loaded models.

    Parameters
    ----------
    workers : int, optional
        Processes to start on this machine. Give either this or `scheduler`.
    scheduler : str, optional
        The address of a running cluster's scheduler, such as `"tcp://node1:8786"`.
    threads : int, default 1
        CPU threads per worker.
    on_failure : {"stop", "partial"}, default "stop"
        What to do when a shard fails every time: stop the run, or return a partial result.

    Examples
    --------
    >>> with Dask(workers=4):
    ...     study("minilm", "book.txt", "s1")
    """

    remote = True

    def __init__(
        self,
        workers: int | None = None,
        scheduler: str | None = None,
        threads: int = 1,
        on_failure: OnFailure = "stop",
    ) -> None:
        if (workers is None) == (scheduler is None):
            raise EigenlensError(
                "a Dask engine needs either `workers`, the number of workers to start here, or"
                " `scheduler`, the address of a scheduler to join"
            )
        needs("dask", "distributed", what="the engine dask")
        if workers is not None and workers < 1:
            raise EigenlensError(f"a cluster needs at least 1 worker, not {workers}")
        if threads < 1:
            raise EigenlensError(f"a worker needs at least 1 thread, not {threads}")
        self.workers, self.scheduler, self.threads = workers, scheduler, threads
        self.here = workers or 0
        self.on_failure = check_on_failure(on_failure)
        self._client: Any = None
        self._entered: list[contextlib.ExitStack] = []
        if workers and getattr(multiprocessing.current_process(), "_inheriting", False):
            raise SystemExit(f"eigenlens: {UNGUARDED}")

    def __enter__(self) -> Dask:
        stack = contextlib.ExitStack()
        stack.enter_context(self.running())
        mark = current_engine.set(self)
        stack.callback(lambda: current_engine.reset(mark))
        self._entered.append(stack)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().close()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Keep the cluster running until the outermost of nested contexts ends."""
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
        needs("dask", "distributed", what="the engine dask")
        import dask
        from distributed import Client

        settings: dict[str, Any] = {
            "distributed.logging.distributed": "error",
            "distributed.admin.large-graph-warning-threshold": "1TB",
        }
        with dask.config.set(settings), _quiet(), contextlib.ExitStack() as stack:
            try:
                if self.scheduler is None:
                    scratch = stack.enter_context(
                        tempfile.TemporaryDirectory(
                            prefix="eigenlens-workers-", ignore_cleanup_errors=True
                        )
                    )
                    with _uninterrupted():
                        here = _started(self.workers, scratch)
                    client = Client(stack.enter_context(here))
                else:
                    client = Client(self.scheduler, timeout=PATIENCE / 6)
            except (
                OSError,
                TimeoutError,
                ValueError,
                TypeError,
                ImportError,
                RuntimeError,
            ) as error:
                if self.scheduler:
                    where = f"the scheduler at {self.scheduler}"
                    hint = (
                        "; set distributed.comm.tls in Dask's settings"
                        if "ssl_context" in str(error)
                        else ""
                    )
                    raise EigenlensError(
                        f"{where} could not be reached: {first_line(error)}{hint}"
                    ) from error
                hint = f" ({UNGUARDED})" if "Nanny" in str(error) else ""
                raise EigenlensError(
                    f"the workers could not be started: {first_line(error)}{hint}"
                ) from error
            stack.callback(_close, client)
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except (TimeoutError, OSError) as error:
                raise EigenlensError(
                    f"no worker has joined {self._label} within {PATIENCE} seconds; start some"
                    " workers"
                ) from error
            yield client

    @property
    def _label(self) -> str:
        return (
            f"the scheduler at {self.scheduler}"
            if self.scheduler
            else "the cluster of this machine"
        )

    def fold(
        self,
        job: Job[S],
        shard_groups: Sequence[Sequence[Shard]],
        resume_from: PartialFold[S] | None = None,
        progress: Tick | None = None,
    ) -> Iterator[PartialFold[S]]:
        """Yield the shard groups in order, each as far as it is folded; see `Engine.fold`."""
        if self._client is None:
            raise EigenlensError(
                "the Dask engine is not running; use it in a `with` block, or give it to the call"
                " as `engine`"
            )
        with Fold(
            self._label,
            self.on_failure,
            self._client,
            job,
            inputs_done(shard_groups, resume_from),
            progress,
        ) as fold:
            for number, shards, at in remaining(shard_groups, resume_from):
                while fold.full(len(shards)):
                    yield fold.next()
                fold.submit(number, shards, at)
            while fold.shard_groups:
                yield fold.next()


def _started(workers: int | None, scratch: str) -> Any:
    """Workers on this machine, each with one thread for tasks."""
    from distributed import LocalCluster

    class Workers(LocalCluster):
        def _update_worker_status(self, op: str, msg: Any) -> None:
            """Ignore late news of a lost worker.

            If the list of workers was read again without it, there is nothing left to do.
            """
            if op != "remove" or msg in self.scheduler_info["workers"]:
                super()._update_worker_status(op, msg)

    options: dict[str, Any] = {
        "threads_per_worker": 1,
        "dashboard_address": None,
        "silence_logs": 50,
    }
    return Workers(n_workers=workers, local_directory=scratch, **options)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C from processes that are started inside: this process ends them itself."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is None
    ):
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's own messages about lost connections; eigenlens says it in one sentence."""
    import logging

    names = (
        "distributed",
        "distributed.client",
        "distributed.core",
        "distributed.scheduler",
        "distributed.comm",
        "tornado",
    )
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
