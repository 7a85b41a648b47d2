"""The fastest plan within a loss: chosen on some documents, checked on others.

The menu of every head predicts what a plan loses: by the second-order view, the summed loss of a
language model rises by half the error, `1 − cos` of an embedding by half the error per input. The
search measures plans of the family on documents that were not fitted on, and takes the fastest
whose mean rise stays within the loss up to the end of its 95 % interval. Then it measures the plan
on documents that were not used for the choice, and takes a safer one as long as their mean is above
the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.attend_by_forms import full_attention
from ..captures import AttentionCall, Site, replace_attention
from ..data.inputs import Batch
from ..models.forward import prefill_of
from ..models.load import Model
from ..run.clock import now
from ..run.progress import Progress
from ..stats.intervals import t_interval
from .allocation import Allocation, Candidate
from .sparse_plan import SparsePlan, plain_form
from .tasks import Perplexity, Task, task_of

PAYS = 1.05
"""How many times faster a whole pass must get for a plan to pay."""
CONFIDENT = 0.95
"""The share of documents whose rise the bound for a single document shall cover."""


@dataclass(frozen=True)
class Rises:
    """How much worse documents got, and how long their passes took."""

    each: list[float]
    seconds: list[float]
    plain_seconds: list[float]

    @property
    def mean(self) -> float:
        return sum(self.each) / len(self.each)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The 95 % interval of the mean."""
        return t_interval(self.each)[1:]

    def within(self, loss: float) -> bool:
        """Whether the mean stays within the loss, up to the end of its interval."""
        high = self.interval[1]
        return self.mean <= loss if high is None else high <= loss

    def record(self) -> dict[str, Any]:
        return {
            "documents": len(self.each),
            "rise": self.mean,
            "interval": list(self.interval),
            "each": self.each,
            "seconds": sum(self.seconds) / len(self.seconds),
            "plain_seconds": sum(self.plain_seconds) / len(self.plain_seconds),
        }


def single_document(each: Sequence[float]) -> float:
    """A bound for the rise of one more document: Student's one-sided prediction limit.

    `each` are the rises of at least two documents.
    """
    from scipy.special import stdtrit  # slow to load

    n, mean = len(each), sum(each) / len(each)
    spread = math.sqrt(sum((x - mean) ** 2 for x in each) / (n - 1))
    return mean + float(stdtrit(n - 1, CONFIDENT)) * spread * math.sqrt(1 + 1 / n)


class LossMeter:
    """Measures plans on documents, beside what the plain model made of them."""

    def __init__(self, model: Model, batches: Sequence[Batch], tell: Callable[[int], None]) -> None:
        self.model, self.batches, self.tell = model, batches, tell
        self.run = prefill_of(model)
        self.task: Task | None = None
        with torch.no_grad():
            self.plain = [self._observe(batches[0])]  # it tells the task

    def _observe(self, batch: Batch) -> tuple[Any, float]:
        begin = now(self.model.device)
        output = self.run(batch)
        seconds = now(self.model.device) - begin
        if self.task is None:
            self.task = task_of(self.model, output)
        self.tell(1)
        return self.task.observe(batch, output), seconds

    def measure(self, plan: SparsePlan, stop_above: float = math.inf) -> Rises:
        """Measure a plan; after three documents it stops if they are far above a loss.

        The plain pass over a document comes right before the first planned one, so that both meet
        the same noise of the machine.
        """
        task: Task | None = None
        seconds: list[float] = []
        for i, batch in enumerate(self.batches):
            with torch.no_grad():
                if i == len(self.plain):
                    self.plain.append(self._observe(batch))
                with replace_attention(self.model.backbone, plan.attend):
                    planned, took = self._observe(batch)
            assert self.task is not None
            task = task or self.task.fresh()
            task.add(self.plain[i][0], planned)
            seconds.append(took)
            if len(seconds) == 3 and sum(task.rises) / len(task.rises) > stop_above:
                break
        assert task is not None
        return Rises(task.rises, seconds, [s for _, s in self.plain[: len(seconds)]])


@dataclass(frozen=True)
class Found:
    """The plan that was found, what was predicted and what was checked."""

    candidate: Candidate | None
    predicted: Rises | None
    checked: Rises | None
    tried: list[dict[str, float]]


def search(
    model: Model,
    allocation: Allocation,
    loss: float,
    length: int,
    choose_on: Sequence[Batch],
    check_on: Sequence[Batch],
    inputs: int,
    count: Callable[[int], str],
    progress: Progress,
) -> Found:
    """Find the fastest plan within a loss; the candidate is None if no plan keeps to it.

    The exact plan, in which every head is dense, keeps to every loss. It counts as one where the
    native kernel computes it faster than torch attends.

    `inputs` is the number of inputs that forms were tried on; `count` says how many documents there
    are, such as "8 texts".
    """
    family = allocation.family()
    meter = _meter(model, choose_on, f"choosing a plan on {count(len(choose_on))}", progress)
    assert meter.task is not None
    tokens = inputs * (length if isinstance(meter.task, Perplexity) else 1)
    measured: dict[int, Rises] = {}
    tried: list[dict[str, float]] = []
    too_fast, safe = -1, len(family) - 1
    # by theory first, which is too hopeful, then by what the last one tells of errors and rises
    aim = 0.4 * 2 * tokens * loss
    while safe - too_fast > 1:
        inner = range(too_fast + 1, safe)
        at = next((i for i in inner if family[i].error <= aim), inner[-1])
        found = meter.measure(allocation.plan(family[at], length), 3 * loss)
        measured[at] = found
        high = found.interval[1]
        top = found.mean if high is None else high
        tried.append({"error": family[at].error, "rise": found.mean, "upper": top})
        if found.within(loss) and len(found.each) == len(choose_on):
            safe = at
        else:
            too_fast = at
        aim = family[at].error * (0.95 * loss / top if top > 0 else 4.0)
    at = safe
    checker = _meter(model, check_on, f"checking the plan on {count(len(check_on))}", progress)
    if family[-1].seconds >= allocation.plain_seconds:
        family = family[:-1]
    while at < len(family):
        checked = checker.measure(allocation.plan(family[at], length))
        if checked.mean <= loss:
            predicted = measured.get(at) or meter.measure(allocation.plan(family[at], length))
            if predicted.within(loss):
                return Found(family[at], predicted, checked, tried)
        tried.append({"error": family[at].error, "rise": checked.mean, "checked": 1.0})
        at += 1
    return Found(None, None, None, tried)


def _meter(model: Model, batches: Sequence[Batch], doing: str, progress: Progress) -> LossMeter:
    done = 0

    def tell(number: int) -> None:
        nonlocal done
        done += number
        # a plan more may follow: the total grows with what is done
        rounds = max(2, -(-done // len(batches)))
        progress(doing, done, rounds * len(batches))

    return LossMeter(model, batches, tell)


@dataclass(frozen=True)
class TimeOfPass:
    """Where the seconds of a plain pass go.

    `served` are the sites whose attention a plan could serve; `attention` are their seconds.
    """

    seconds: float
    attention: float
    tokens: int
    served: frozenset[Site]

    def record(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "attention": self.attention, "tokens": self.tokens}


def time_of_pass(model: Model, batch: Batch, length: int) -> TimeOfPass:
    """Run the plain model on a batch and time its attention, by torch's own kernel."""
    spent, served = [0.0], set()

    def attend(call: AttentionCall) -> torch.Tensor | None:
        if (found := plain_form(call)) is None:
            return None
        causal, valid = found
        served.add(call.site)
        begin = now(model.device)
        out = full_attention(call.q, call.k, call.v, causal, call.scale, valid)
        spent[0] += now(model.device) - begin
        return out

    run = prefill_of(model)
    best: TimeOfPass | None = None
    with torch.no_grad(), replace_attention(model.backbone, attend):
        for _ in range(2):  # the first pass of a process is slower
            spent[0], begin = 0.0, now(model.device)
            run(batch)
            took = now(model.device) - begin
            found = TimeOfPass(took, spent[0], length, frozenset(served))
            best = found if best is None or found.seconds < best.seconds else best
    assert best is not None
    return best


def pays_from(
    rest: float, attention: Callable[[int], tuple[float, float]], longest: int | None
) -> int | None:
    """From how many tokens on a plan would make a pass `PAYS` times faster; None if from none.

    `rest` are the seconds per token that are not attention; `attention(length)` the seconds of
    attention, plain and planned; `longest` is what the model can read.
    """
    for length in (round(512 * 2 ** (i / 4)) // 64 * 64 for i in range(1, 41)):
        if longest is not None and length > longest:
            return None
        plain, planned = attention(length)
        if (rest * length + plain) / (rest * length + planned) >= PAYS:
            return length
    return None
