"""What the workers of a Dask cluster do: hold, run a shard, merge."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import EigenlensError
from .arrays import as_arrays, as_tensors
from .shards import Job


class Unfit(EigenlensError):
    """A worker that cannot do any of the work: never a fault of the shard."""


_ONE_AT_A_TIME = threading.Lock()
"""A worker may have several threads; a model runs in one of them."""


def hold(content: Any) -> Any:
    """A task whose result others need.

    The scheduler keeps what it is made from, so it outlives the loss of all workers.
    """
    return content


@dataclass
class Packed:
    """Work in bytes, and its arrays beside them, which are not copied."""

    work: bytes
    arrays: list[np.ndarray]


def pack(work: Any) -> Packed:
    """Work for `unpack`.

    Had Dask to read it on its way, a worker that lacks the code of it would end instead of saying
    so.
    """
    from distributed.protocol.pickle import dumps

    arrays: list[np.ndarray] = []
    return Packed(
        dumps(
            work, buffer_callback=lambda part: arrays.append(np.frombuffer(part.raw(), np.uint8))
        ),
        arrays,
    )


def unpack(packed: Packed) -> Any:
    """From the client, as everything a worker is sent: a cluster is trusted."""
    from distributed.protocol.pickle import loads

    return loads(packed.work, buffers=packed.arrays)


def run(job: Job[Any], number: int, content: Any, topic: str, version: str) -> Any:
    """The task of a shard."""
    from distributed import get_worker

    from .._version import __version__

    worker = get_worker()
    if version != __version__:
        raise Unfit(
            f"the worker at {worker.address} has eigenlens {__version__}, and this run is of"
            f" {version}; install the same everywhere"
        )
    with _ONE_AT_A_TIME:
        torch.set_num_threads(job.threads)
        return as_arrays(
            job.run(content, lambda done: worker.log_event(topic, {"shard": number, "done": done}))
        )


def merge(job: Job[Any], mine: Any, theirs: Any) -> Any:
    """The task of a merge; its inputs may be needed again, and stay as they are."""
    torch.set_num_threads(job.threads)
    return as_arrays(job.merge(as_tensors(mine, own=True), as_tensors(theirs)))
