"""The training loop of every experiment.

It is deterministic, measures held-out loss on the way, and goes on where it was stopped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..attention.qk import localisation_penalty
from ..errors import EigenlensError
from ..hints import check_fields
from ..run.files import made_folder, write_tensors
from .model import Transformer
from .tasks import IGNORED, LearningTask

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done, and how many there are."""


@dataclass(frozen=True)
class TrainingSettings:
    """AdamW with a linear warm-up and a cosine down to a tenth of `rate`.

    Gradients are clipped to norm 1.

    `patience` stops a run after that many measurements without a better held-out loss; None runs
    all steps. `penalty` times the localisation penalty of every head's `W_Q W_Kᵀ`, their mean, is
    added to the training loss.
    """

    steps: int
    batch: int = 16
    rate: float = 1e-3
    warmup: int = 50
    decay: float = 0.01
    measure: int = 100
    patience: int | None = None
    seed: int = 0
    penalty: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        least = {
            "steps": 0,
            "batch": 1,
            "rate": 0,
            "warmup": 0,
            "decay": 0,
            "measure": 1,
            "patience": 1,
            "penalty": 0,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not bound <= value < math.inf:
                raise EigenlensError(f"{name} is at least {bound}, and finite, not {value}")

    def rate_at(self, step: int) -> float:
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.rate * (0.55 + 0.45 * float(torch.cos(torch.tensor(share * torch.pi))))


@dataclass(frozen=True)
class Point:
    """Held-out `loss` and `accuracy` after `step` steps and `seconds` of training.

    As `evaluate` gives them.
    """

    step: int
    loss: float
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Trained:
    """What a run came to.

    `flops` count two for a multiply-add and three forward passes for a training step.
    """

    curve: tuple[Point, ...]
    steps: int
    seconds: float
    flops: float

    @property
    def loss(self) -> float:
        return self.curve[-1].loss

    @property
    def accuracy(self) -> float:
        return self.curve[-1].accuracy

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(point) for point in self.curve]


@torch.no_grad()
def evaluate(model: Transformer, task: LearningTask) -> tuple[float, float]:
    """Held-out loss in nats per place that is asked for, and the share of them that are right.

    Where vectors are asked for the loss is the mean squared error of a number, and no share is
    right: nan.
    """
    loss = right = number = 0.0
    for batch in task.held_out():
        batch = batch.to(next(model.parameters()).device)
        outputs, targets = _asked(model(batch.inputs), batch.targets)
        loss += float(_loss(outputs, targets, reduction="sum"))
        right += (
            math.nan if targets.is_floating_point() else float((outputs.argmax(1) == targets).sum())
        )
        number += targets.numel()
    return loss / number, right / number


def train(
    model: Transformer,
    task: LearningTask,
    settings: TrainingSettings,
    *,
    progress: Progress | None = None,
    label: str = "training a model",
    before: Callable[[int], None] | None = None,
    extra: Callable[[Transformer], Tensor] | None = None,
    checkpoint: Path | None = None,
    every: float = 60.0,
) -> Trained:
    """Train a lab model in place.

    Parameters
    ----------
    model : Transformer
        The model.
    task : LearningTask
        The task, which draws batches and measures held-out loss.
    settings : TrainingSettings
        Steps, batch size, learning rate and so on.
    progress : callable, optional
        Called with `(what, done, total)` during the training. Default: silent.
    label : str, default "training a model"
        What `progress` says is being done.
    before : callable, optional
        `before(step)` is called before each step, so that a mechanism can be refitted. Default:
        none.
    extra : callable, optional
        `extra(model)` is a further loss, added to that of every step. Default: none.
    checkpoint : Path, optional
        A file that keeps the state; a run that finds one goes on from it to the identical end. The
        file is left when the run is over. Default: none.
    every : float, default 60.0
        Seconds between two checkpoints, at least.

    Returns
    -------
    Trained
        The held-out loss along training, steps, seconds and multiply-adds.

    Raises
    ------
    EigenlensError
        If the checkpoint is of another run.

    Examples
    --------
    >>> train(Transformer(config), Sort(), TrainingSettings(steps=200)).rows()[-1]
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        parameters, lr=settings.rate, betas=(0.9, 0.98), weight_decay=settings.decay
    )
    device = parameters[0].device
    step, seconds = 0, 0.0
    curve: list[Point] = []
    if checkpoint is not None and checkpoint.is_file():
        step, seconds, curve = _resume(checkpoint, model, optimiser, settings)
    saved = time.monotonic()
    while step < settings.steps and not _stalled(curve, settings.patience):
        begin = time.perf_counter()
        if before is not None:
            before(step)
        for group in optimiser.param_groups:
            group["lr"] = settings.rate_at(step)
        batch = task.batch(settings.batch, settings.seed, step).to(device)
        loss = _loss(*_asked(model(batch.inputs), batch.targets))
        if settings.penalty:
            loss = loss + settings.penalty * penalty(model)
        if extra is not None:
            loss = loss + extra(model)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        step += 1
        seconds += time.perf_counter() - begin
        if step % settings.measure == 0 or step == settings.steps:
            curve.append(Point(step, *evaluate(model, task), seconds))
        if progress is not None:
            progress(label, step, settings.steps)
        if checkpoint is not None and (time.monotonic() - saved > every or step == settings.steps):
            _save(checkpoint, model, optimiser, settings, step, seconds, curve)
            saved = time.monotonic()
    if not curve:
        curve = [Point(step, *evaluate(model, task), seconds)]
    return Trained(
        tuple(curve), step, seconds, 6.0 * model.cost(task.length) * settings.batch * step
    )


def penalty(model: Transformer) -> Tensor:
    """The mean of `‖W‖²_F − (tr W)²/C` of `W = W_Q W_Kᵀ` over all heads of all layers."""
    if not model.attentions:
        raise EigenlensError("a penalty on queries and keys needs a model with attention")
    return torch.cat(
        [localisation_penalty(attention.w_q, attention.w_k) for attention in model.attentions]
    ).mean()


def _asked(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Only the places that are asked for.

    Outputs (N, classes), targets (N,) or, of vectors, (N, classes).
    """
    chosen = ~targets.isnan().any(-1) if targets.is_floating_point() else targets != IGNORED
    return outputs[chosen], targets[chosen]


def _loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    if targets.is_floating_point():
        return F.mse_loss(outputs, targets, reduction=reduction)
    return F.cross_entropy(outputs, targets, reduction=reduction)


def _stalled(curve: list[Point], patience: int | None) -> bool:
    if patience is None or len(curve) <= patience:
        return False
    return min(p.loss for p in curve[-patience:]) >= min(p.loss for p in curve[:-patience])


def _save(
    path: Path,
    model: Transformer,
    optimiser: torch.optim.Optimizer,
    settings: TrainingSettings,
    step: int,
    seconds: float,
    curve: list[Point],
) -> None:
    """Weights, optimiser and curve in one file, which is complete or absent."""
    tensors = {f"model/{name}": x for name, x in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{name}": x for name, x in state.items()}
    facts = {
        "settings": asdict(settings),
        "step": step,
        "seconds": seconds,
        "curve": [asdict(p) for p in curve],
    }
    made_folder(path.parent)
    write_tensors(path, tensors, {"facts": json.dumps(facts)})


def _resume(
    path: Path, model: Transformer, optimiser: torch.optim.Optimizer, settings: TrainingSettings
) -> tuple[int, float, list[Point]]:
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise EigenlensError(
            f"the checkpoint {path} cannot be read: {error}; delete it to begin anew"
        ) from error
    if facts["settings"] != asdict(settings):
        raise EigenlensError(
            f"the checkpoint {path} belongs to a run with other settings; delete it to begin anew"
        )
    try:
        model.load_state_dict(
            {name[6:]: x for name, x in tensors.items() if name.startswith("model/")}
        )
    except RuntimeError as error:
        raise EigenlensError(
            f"the checkpoint {path} is of another model; delete it to begin anew"
        ) from error
    states: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith("optimiser/"):
            _, index, key = name.split("/")
            states.setdefault(int(index), {})[key] = x
    optimiser.load_state_dict({**optimiser.state_dict(), "state": states})
    return facts["step"], facts["seconds"], [Point(**p) for p in facts["curve"]]
