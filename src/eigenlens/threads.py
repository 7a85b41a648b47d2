"""Threads for small work: a parallel region costs more than it gives for little matrices.

OpenMP's threads meet at the end of every region and spin until all are there. Beside another
process, one of them waits for a core while the others burn theirs, thousands of times per second.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

I = TypeVar("I")
R = TypeVar("R")

WAITING = {"GOMP_SPINCOUNT": "1000", "OPENBLAS_NUM_THREADS": "1"}
"""How long OpenMP's threads spin before they sleep, and the threads for SciPy."""
CHOSEN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS")
WORTH = 2**21
"""Multiply-adds of a batch of decompositions from which on a second thread is worth its start."""


def wait_without_spinning() -> None:
    """Set these before torch is loaded, which reads them once, unless the user has chosen any.

    The command does; in Python it is for the user to say.
    """
    if not any(name in os.environ for name in CHOSEN):
        os.environ.update(WAITING)


class _Here(threading.local):
    """How many blocks of this thread compute in one thread."""

    depth = 0


_here = _Here()
_counting = threading.Lock()
# torch's threads before the first block of any thread, and one entry for each that is open
_blocks: list[int] = []


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """The block computes in one thread.

    Threads of Python may be in such blocks at the same time.
    """
    import torch

    if _here.depth:
        yield
        return
    with _counting:
        mine = torch.get_num_threads()
        if _blocks and mine == 1:
            mine = _blocks[0]  # a new thread begins with what another block has set
        _blocks.append(_blocks[0] if _blocks else mine)
        torch.set_num_threads(1)
    _here.depth = 1
    try:
        yield
    finally:
        _here.depth = 0
        with _counting:
            _blocks.pop()
            torch.set_num_threads(mine)


def map_in_threads(work: Callable[[I], R], items: Sequence[I]) -> list[R]:
    """`work(item)` of every item, in order, each in one thread.

    As many run at once as torch has threads.

    What an item gives does not depend on how many there are. Where a mode of torch is on, such as
    the one that keeps float64, which other threads would not have, the items follow each other.
    """
    import torch

    threads, graph = torch.get_num_threads(), torch.is_grad_enabled()

    def begin() -> None:
        torch.set_num_threads(1)
        _here.depth = 1

    def alone(item: I) -> R:
        with torch.set_grad_enabled(graph):  # a setting of the thread
            return work(item)

    with one_thread():
        if threads == 1 or len(items) == 1 or torch._C._len_torch_function_stack():
            return [work(item) for item in items]
        with ThreadPoolExecutor(threads, initializer=begin) as pool:
            return list(pool.map(alone, items))


def decompose_batch(decompose: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """`decompose(batch)` of matrices `(b, m, n)`, each in one thread, large batches in parallel."""
    import torch

    if batch.is_cuda:
        return decompose(batch)
    if batch.numel() * min(batch.shape[1:]) < WORTH:
        with one_thread():
            return decompose(batch)
    return torch.cat(map_in_threads(decompose, batch.chunk(torch.get_num_threads())))


def eigh(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues `(b, n)`, rising, and eigenvectors `(b, n, n)` of symmetric matrices.

    Each matrix in one thread.
    """
    import torch

    both = decompose_batch(
        lambda some: torch.cat([(found := torch.linalg.eigh(some))[0][:, None], found[1]], 1), batch
    )
    return both[:, 0], both[:, 1:]
