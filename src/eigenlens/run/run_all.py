"""Run a job over all of its shards in one go, without checkpoints.

For results that take so little time that an interrupted run simply starts again.
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
    """The job cannot be done: the model or its inputs do not allow it, or every shard failed.

    `reason` is the job's own message; the whole message also names the shard.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


@dataclass
class MergedShards(Generic[S]):
    """All shards merged into one `state`; `failed` has a `Failure.record` of each lost shard."""

    state: S
    failed: list[dict[str, Any]]


def run_all(
    engine: Engine, job: Job[S], shards: Sequence[Shard], progress: Tick | None = None
) -> MergedShards[S]:
    """Run a job over all shards.

    States are merged within groups, then across groups, always in the same order, so that every
    engine gives the same bits.

    If the engine stops because the job raised an `EigenlensError`, such as one about a model that
    is not supported, the error here is `Refused`.
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
    return MergedShards(total, failed)


def describe_failures(what: str, failed: Sequence[dict[str, Any]]) -> str:
    """Return the note of a partial result: `SAN is partial: 1 shard with 4 inputs failed, …`."""
    inputs, first = sum(failure["inputs"] for failure in failed), failed[0]
    documents = ", ".join(first["documents"][:5]) + (
        " and others" if len(first["documents"]) > 5 else ""
    )
    return (
        f"{what} is partial: {numbered(len(failed), 'shard')} with {numbered(inputs, 'input')}"
        f" failed, the first of them (documents {documents}) with: {first['error']}"
    )
