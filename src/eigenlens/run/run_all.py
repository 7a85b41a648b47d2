"""A job over all of its shards at once, for results that are short enough to be done again when
they are interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..display import numbered
from ..errors import EigenlensError
from .engine import Engine
from .shards import Job, Shard, Tick, shard_groups

S = TypeVar("S")


class Refused(EigenlensError):
    """The work itself says why it cannot be done: the model or its inputs do not allow it, or no
    shard came through.

    `reason` is that alone, without the shard at which it was said.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


@dataclass
class AllShards(Generic[S]):
    """All shards in one state, but for those that `failed`, as `Failure.record` has them."""

    state: S
    failed: list[dict[str, Any]]


def folded(
    engine: Engine, job: Job[S], shards: Sequence[Shard], progress: Tick | None = None
) -> AllShards[S]:
    """Shards into groups and groups into one, always in the same tree.

    Where the engine stops at a shard, it is `Refused` what the job has a sentence for, such as a
    model that it is not for.
    """
    total: S | None = None
    failed: list[dict[str, Any]] = []
    try:
        for part in engine.fold(job, shard_groups(shards), progress=progress):
            if part.complete:
                failed += [failure.record() for failure in part.failed]
                if part.state is not None:
                    total = part.state if total is None else job.merge(total, part.state)
    except EigenlensError as error:
        if isinstance(error.__cause__, EigenlensError):
            raise Refused(str(error), str(error.__cause__)) from error
        raise
    if total is None:
        raise Refused(failed[0]["error"])
    return AllShards(total, failed)


def lost(what: str, failed: Sequence[dict[str, Any]]) -> str:
    """What a partial result says of itself: `SAN is partial: 1 shard with 4 inputs failed, …`."""
    inputs, first = sum(failure["inputs"] for failure in failed), failed[0]
    documents = ", ".join(first["documents"][:5]) + (
        " and others" if len(first["documents"]) > 5 else ""
    )
    return (
        f"{what} is partial: {numbered(len(failed), 'shard')} with {numbered(inputs, 'input')}"
        f" failed, the first of them (documents {documents}) with: {first['error']}"
    )
