"""Shards of a long computation over inputs, and the tree that merges their states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from ..display import numbered
from ..errors import EigenlensError, first_line

S = TypeVar("S")
SHARDS_PER_GROUP = 8
"""How many shards are in a shard group.

Shards are folded in order into groups, groups in order into the total: always the same tree of
merges, whoever works on it, so that the numbers are equal to the last bit.
"""

Tick = Callable[[int], None]
"""Called with the number of inputs that are done."""


@dataclass(frozen=True)
class Shard:
    """Some inputs: whole documents, unless one document is longer than two shards.

    `content` makes what the job runs on.
    """

    number: int
    size: int
    documents: tuple[str, ...]
    content: Callable[[], Any] = field(repr=False)

    def __str__(self) -> str:
        """The shard in words: `shard 3 (64 inputs of the documents a.txt, b.txt)`."""
        named = ", ".join(self.documents[:5]) + (
            f" and {len(self.documents) - 5} more" if len(self.documents) > 5 else ""
        )
        of = (
            f" of the document{'s' if len(self.documents) > 1 else ''} {named}"
            if self.documents
            else ""
        )
        return f"shard {self.number} ({numbered(self.size, 'input')}{of})"


class Job(Protocol[S]):
    """The work that is done on every shard.

    It is sent to other processes: it holds no model, but a reference to one.
    """

    threads: int

    def run(self, content: Any, tick: Tick) -> S:
        """Return the state of one shard."""

    def merge(self, mine: S, theirs: S) -> S:
        """Merge two states; `mine` may be changed and is not used again; `theirs` is kept."""


@runtime_checkable
class Recycles(Protocol):
    """A job that fills the memory of one shard again for the next."""

    def recycle(self, state: Any) -> None:
        """Take a state that was merged and that nobody uses any more."""


@dataclass(frozen=True)
class Failure:
    """A shard that failed every time, and its error."""

    shard: int
    inputs: int
    documents: tuple[str, ...]
    error: str

    @classmethod
    def of(cls, shard: Shard, error: BaseException | str) -> Failure:
        return cls(shard.number, shard.size, shard.documents, _words(error))

    def record(self) -> dict[str, Any]:
        return {
            "shard": self.shard,
            "inputs": self.inputs,
            "documents": list(self.documents),
            "error": self.error,
        }


@dataclass
class PartialFold(Generic[S]):
    """How far a shard group is folded.

    `state` merges the first `shards` of its shards, except those in `failed`. With the last shard
    the group is `complete`.

    `state` is None if all of them failed, or none has run.
    """

    group: int
    shards: int
    complete: bool
    state: S | None
    failed: tuple[Failure, ...] = ()


def stop_error(shard: Shard, error: BaseException | str) -> EigenlensError:
    """Return the error of a run that ends because a shard failed."""
    return EigenlensError(f"{shard} failed: {_words(error)}")


def cut_at_documents(documents: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Cut inputs (N,) into runs `(start, stop)` of about `size`, each at the end of a document.

    A run is extended to the end of its last document if that takes at most `size` further inputs;
    else it is cut inside the document.
    """
    ends = np.flatnonzero(np.diff(documents)) + 1
    runs, start, number = [], 0, len(documents)
    while start < number:
        stop = min(start + size, number)
        if stop < number:
            later = ends[np.searchsorted(ends, stop) :]
            end = int(later[0]) if len(later) else number
            stop = end if end <= start + 2 * size else stop
        runs.append((start, stop))
        start = stop
    return runs


def shard_groups(shards: Sequence[Shard]) -> list[list[Shard]]:
    """Return the shards in groups of `SHARDS_PER_GROUP`."""
    return [
        list(shards[first : first + SHARDS_PER_GROUP])
        for first in range(0, len(shards), SHARDS_PER_GROUP)
    ]


def most_states(shards: int) -> int:
    """Return how many states a process holds at most while it folds so many shards.

    These are the total, the current shard group, and the shard that runs.
    """
    return min(shards, 1) + (shards > 1) + (shards > SHARDS_PER_GROUP)


def _words(error: BaseException | str) -> str:
    if isinstance(error, str | EigenlensError):
        return str(error)
    return (
        f"{type(error).__name__}: {first_line(error)}"
        if str(error).strip()
        else type(error).__name__
    )
