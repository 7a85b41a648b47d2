"""The tasks that workers of a Dask cluster run: hold data, run a shard, merge two states."""

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
    """A worker cannot do any work of this run; the shard is not at fault."""


_ONE_AT_A_TIME = threading.Lock()
"""A worker may have several threads; the lock lets one of them run a model at a time."""


def hold_content(content: Any) -> Any:
    """Return the argument, for other tasks to read.

    The scheduler keeps the argument, so the result can be made again even if all workers are lost.
    """
    return content


@dataclass
class Packed:
    """A pickled object, with its arrays kept apart so that they are not copied."""

    work: bytes
    arrays: list[np.ndarray]


def pack_work(work: Any) -> Packed:
    """Pickle an object for `unpack_work`.

    Dask itself never unpickles it on the way. If it did, a worker without the code of the object
    would stop there instead of reporting the error.
    """
    from distributed.protocol.pickle import dumps

    arrays: list[np.ndarray] = []
    return Packed(
        dumps(
            work, buffer_callback=lambda part: arrays.append(np.frombuffer(part.raw(), np.uint8))
        ),
        arrays,
    )


def unpack_work(packed: Packed) -> Any:
    """Return the object that `pack_work` pickled. It comes from the client, whom workers trust."""
    from distributed.protocol.pickle import loads

    return loads(packed.work, buffers=packed.arrays)


def run_shard(job: Job[Any], number: int, content: Any, topic: str, version: str) -> Any:
    """Run a job on one shard, in a worker of the same version of eigenlens."""
    from distributed import get_worker

    from .._version import __version__

    worker = get_worker()
    if version != __version__:
        raise Unfit(
            f"the worker at {worker.address} has eigenlens {__version__}, and this run was started"
            f" by eigenlens {version}; install the same version everywhere"
        )
    with _ONE_AT_A_TIME:
        torch.set_num_threads(job.threads)
        return as_arrays(
            job.run(content, lambda done: worker.log_event(topic, {"shard": number, "done": done}))
        )


def merge(job: Job[Any], mine: Any, theirs: Any) -> Any:
    """Merge two states; the inputs are left unchanged, because another task may need them again."""
    torch.set_num_threads(job.threads)
    return as_arrays(job.merge(as_tensors(mine, own=True), as_tensors(theirs)))
