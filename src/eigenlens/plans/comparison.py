"""What an evaluation does with a shard: compare calls head by head, and run full passes."""

from __future__ import annotations

import copy
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ..captures import AttentionCall, capture
from ..estimators.measures import Sums
from ..models.forward import forward_of
from ..models.load import Model
from ..passes.model_ref import ModelRef
from ..passes.shards import ShardBatches, to_device
from ..run.shards import Tick
from ..stats import State
from .tasks import Task, task_of


class Change(Protocol):
    """A change of a model: a plan, or another mechanism.

    It can be sent to other processes with its tensors.
    """

    def compare(self, call: AttentionCall) -> dict[str, Tensor] | None:
        """Sums per head `(H, …)` of how far the changed attention is from the call's own.

        None skips the call.
        """

    def applied(self, model: Model) -> AbstractContextManager[Any]:
        """Change the model while the block runs."""


@dataclass
class CallComparison:
    """Compares every attention call of the unchanged model with the changed attention.

    The state is `site/name` → sum.
    """

    model_ref: ModelRef
    threads: int
    change: Change

    @torch.no_grad()
    def run(self, content: ShardBatches, tick: Tick) -> State:
        found, done = Sums(), 0

        def sink(call: AttentionCall) -> None:
            sums = self.change.compare(call)
            if sums is not None:
                found.take({f"{call.site}/{name}": x for name, x in sums.items()})

        with self.model_ref.running() as model, capture(model.backbone, sink):
            for batch in content.batches:
                forward_of(model)(to_device(batch, model.device))
                done += len(next(iter(batch.values())))
                tick(done)
        return {name: x.cpu() for name, x in found.sums.items()}

    def merge(self, mine: State, theirs: State) -> State:
        both = Sums(mine)
        both.take(theirs)
        return both.sums


@dataclass
class Passed:
    """The measure of the task so far, and the seconds of plain and changed passes."""

    task: Task
    seconds: tuple[float, float]


@dataclass
class TimedPass:
    """Runs full passes, plain and changed in turn.

    In a changed pass every layer sees what the changed layers below it made.
    """

    model_ref: ModelRef
    threads: int
    change: Change
    _warm: bool = field(default=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_warm": False}

    @torch.no_grad()
    def run(self, content: ShardBatches, tick: Tick) -> Passed:
        task: Task | None = None
        plain_seconds = changed_seconds = 0.0
        done = 0
        with self.model_ref.running() as model:
            forward = forward_of(model, with_head=True)
            for given in content.batches:
                batch = to_device(given, model.device)
                if not self._warm:
                    forward(batch)  # the first pass of a process is slower
                    self._warm = True
                begin = time.perf_counter()
                plain = forward(batch)
                middle = time.perf_counter()
                with self.change.applied(model):
                    changed = forward(batch)
                plain_seconds, changed_seconds = (
                    plain_seconds + middle - begin,
                    changed_seconds + time.perf_counter() - middle,
                )
                task = task or task_of(model, plain)
                task.add(batch, plain, changed)
                done += len(next(iter(batch.values())))
                tick(done)
        assert task is not None
        return Passed(task, (plain_seconds, changed_seconds))

    def merge(self, mine: Passed, theirs: Passed) -> Passed:
        task = copy.deepcopy(mine.task)  # on a cluster a state may be needed again
        task.merge(theirs.task)
        return Passed(
            task, (mine.seconds[0] + theirs.seconds[0], mine.seconds[1] + theirs.seconds[1])
        )
