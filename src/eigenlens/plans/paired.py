"""A changed model beside the plain one, on an engine, and the rows of the evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ..captures import Site
from ..passes.facts import Facts
from ..passes.model_ref import ModelRef
from ..run.engine import Engine
from ..run.progress import Progress
from ..run.run_all import describe_failures, run_all
from ..run.shards import Job
from ..stats.intervals import t_interval
from ..stats.statistic import by_site
from .comparison import CallComparison, Change, Passed, TimedPass
from .evaluation import FIRST_TOKEN, MEMORY, PER_SECOND, SECONDS, Evaluation
from .held_out import HeldOut
from .sparse_plan import REASONS
from .tasks import Perplexity, Task

S = TypeVar("S")
FEW = 8
"""With fewer inputs an evaluation says that its interval is wide."""
KEPT = ("model", "data", "length", "inputs", "notes", "versions", "created")
"""The facts that an evaluation keeps."""


@dataclass
class PairedEvaluation:
    """Measures a change on at most `number` inputs of `held`, with an `engine`.

    `notes` say what is missing if shards failed.
    """

    held: HeldOut
    number: int
    model_ref: ModelRef
    change: Change
    engine: Engine
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def _run(self, what: str, doing: str, job: Job[S]) -> tuple[S, int]:
        """Run a job over all inputs; returns its state and the number of inputs in it."""
        shards = self.held.shards(self.number)
        total = sum(shard.size for shard in shards)
        stage = f"{doing} {self.held.inputs.facts.count(total)}"
        merged = run_all(self.engine, job, shards, lambda done: self.progress(stage, done, total))
        if merged.failed:
            self.notes.append(describe_failures(f"what was found of {what}", merged.failed))
        return merged.state, total - sum(failure["inputs"] for failure in merged.failed)

    def calls(self, what: str) -> tuple[dict[Site, dict[str, Tensor]], int]:
        """The sums of `Change.compare` over all calls by site, and the number of inputs in them."""
        state, used = self._run(
            what,
            f"comparing {what} on",
            CallComparison(self.model_ref, self.engine.threads, self.change),
        )
        return by_site(state), used

    def full_passes(self, simulated: bool) -> list[dict[str, Any]]:
        """The measure of the task, and what full passes take, plain and changed in turn.

        The seconds are the sum over all processes; several workers on one machine make them
        noisier. A simulated change has none.
        """
        found, _ = self._run(
            "full passes",
            "running both models on" if simulated else "timing both models on",
            TimedPass(self.model_ref, self.engine.threads, self.change),
        )
        if not simulated and len(found.task.rises) < FEW:
            self.notes.append(
                f"the loss comes from {self.held.inputs.facts.count(len(found.task.rises))}; with"
                f" {FEW} or more its interval gets narrower"
            )
        self._note_calls(found)
        return [*found.task.result(), *_rise(found.task), *([] if simulated else _costs(found))]

    def _note_calls(self, found: Passed) -> None:
        exact = {why: n for why, n in found.calls.items() if why != "planned"}
        if exact:
            whole = sum(found.calls.values())
            why = "; ".join(f"{n} for {REASONS.get(name, name)}" for name, n in exact.items())
            self.notes.append(
                f"{sum(exact.values())} of {whole} attention calls were attended exactly: {why}"
            )

    def evaluation(
        self,
        local: Sequence[dict[str, Any]],
        heads: list[dict[str, Any]],
        used: int,
        change: dict[str, Any],
        simulated: bool = False,
    ) -> Evaluation:
        """Run full passes, and join their measures with `local`, those of single calls.

        `used` is the number of inputs in `local` and in the rows per head; `change` describes the
        change.
        """
        rows = [*local, *self.full_passes(simulated)]
        facts = Facts.now(
            self.held.model.facts,
            self.held.inputs.facts,
            length=self.held.inputs.length,
            inputs=used,
            notes=self.notes,
        )
        stored = {**facts.record(*KEPT, by_name=True), "plan": {**change, "simulated": simulated}}
        return Evaluation(stored, [with_change(row) for row in rows], heads)


def _rise(task: Task) -> list[dict[str, Any]]:
    """How much worse an input got on average, with the 95 % interval over inputs."""
    mean, low, high = t_interval(task.rises)
    row = {"measure": f"{task.rise}, mean over inputs", "plain": 0.0, "planned": mean}
    return [{**row, "low": low, "high": high}]


def _costs(found: Passed) -> list[dict[str, Any]]:
    plain, planned = found.seconds
    rows = [{"measure": SECONDS, "plain": plain, "planned": planned}]
    n = max(found.inputs, 1)
    if isinstance(found.task, Perplexity):
        rows.append({"measure": FIRST_TOKEN, "plain": plain / n, "planned": planned / n})
    else:
        rows.append(
            {
                "measure": PER_SECOND,
                "plain": n / max(plain, 1e-9),
                "planned": n / max(planned, 1e-9),
            }
        )
    memory = [b / 1e6 for b in found.memory]
    return [*rows, {"measure": MEMORY, "plain": memory[0], "planned": memory[1]}]


def with_change(row: dict[str, Any]) -> dict[str, Any]:
    """The relative change from the plain to the planned figure, and the ends of its interval.

    None if the plain figure is 0 or 1 by definition, or where there is no interval.
    """
    compares = row["plain"] not in {0.0, 1.0}
    change = row["planned"] / row["plain"] - 1 if compares else None
    ends = {name: row.get(name) for name in ("low", "high")}
    return {**row, "change": change, **ends}


def head_rows(site: Site, columns: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """One row per head of a site, from one column `(H,)` per name."""
    lists = {name: column.tolist() for name, column in columns.items()}
    return [
        {"stack": site.stack, "layer": site.layer, "head": head, **dict(zip(lists, numbers))}
        for head, numbers in enumerate(zip(*lists.values()))
    ]


def means(heads: Sequence[dict[str, Any]], measures: dict[str, str]) -> list[dict[str, Any]]:
    """One row per measure: the mean over heads, beside its value in the plain model."""
    plain = {"top_1": 1.0, "pairs": 1.0, "work": 1.0, "work_planned": 1.0}
    return [
        {
            "measure": label,
            "plain": plain.get(name, 0.0),
            "planned": float(np.mean([head[name] for head in heads])),
        }
        for name, label in measures.items()
    ]
