"""What an evaluation does with a shard: compare calls head by head, and run full passes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..captures import AttentionCall, capture
from ..estimators.measures import Sums
from ..models.forward import forward_of, prefill_of
from ..models.load import Model
from ..passes.model_ref import ModelRef
from ..passes.shards import ShardBatches, to_device
from ..run.clock import now
from ..run.memory import peak_of
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

    def calls(self) -> Mapping[str, int]:
        """How many attention calls of changed passes were `planned`, and how many exact, by reason.

        Empty if every call is changed.
        """


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
    """The measure of the task so far, and what plain and changed passes took."""

    task: Task
    seconds: tuple[float, float]
    memory: tuple[int, int]
    """The most bytes that a pass needed beyond the model and its inputs."""
    inputs: int
    calls: Counter[str]


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
        memory, done, calls = (0, 0), 0, Counter[str]()
        with self.model_ref.running() as model:
            prefill = prefill_of(model)
            for given in content.batches:
                batch = to_device(given, model.device)
                if not self._warm:  # the first passes of a process are slower
                    plain_bytes = peak_of(partial(prefill, batch), model.device)
                    with self.change.applied(model):
                        changed_bytes = peak_of(partial(prefill, batch), model.device)
                    memory = (plain_bytes, changed_bytes)
                    self._warm = True
                begin = now(model.device)
                output = prefill(batch)
                plain_seconds += now(model.device) - begin
                task = task or task_of(model, output)
                plain = task.observe(batch, output)
                del output
                before = Counter(self.change.calls())
                with self.change.applied(model):
                    begin = now(model.device)
                    output = prefill(batch)
                    changed_seconds += now(model.device) - begin
                calls += Counter(self.change.calls()) - before
                task.add(plain, task.observe(batch, output))
                done += len(next(iter(batch.values())))
                tick(done)
        assert task is not None
        return Passed(task, (plain_seconds, changed_seconds), memory, done, calls)

    def merge(self, mine: Passed, theirs: Passed) -> Passed:
        task = copy.deepcopy(mine.task)  # on a cluster a state may be needed again
        task.merge(theirs.task)
        return Passed(
            task,
            (mine.seconds[0] + theirs.seconds[0], mine.seconds[1] + theirs.seconds[1]),
            (max(mine.memory[0], theirs.memory[0]), max(mine.memory[1], theirs.memory[1])),
            mine.inputs + theirs.inputs,
            mine.calls + theirs.calls,
        )
