"""Training with the approximation.

A small transformer learns real text, then goes on with another attention.

Full attention is trained once per seed. From there every mechanism is measured as it is dropped in,
and after the same number of further steps as full attention gets:

    (a) drop-in     no tuning
    (b) frozen      the model is tuned, W and b stay
    (c) learned     W and b are tuned too, from their least-squares start
    (d) refit       W and b are fitted anew to the model's own scores every so many steps
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ...attention.interpolated import InterpolatedKeys
from ...data.text import pieces
from ...display import numbered
from ...lab import Config, MaskedBytes, TrainingSettings, Transformer, evaluate, split, train
from ...run.parts import Parts
from ...run.progress import Progress
from .mechanisms import LayerMoments, layer_moments, make_mechanism


@dataclass(frozen=True)
class EigenAnalysisTraining:
    """Which text, which model, how long.

    `statistics` batches make the moments, refits come every `refit` steps.
    """

    data: str
    characters: int
    model: Config
    base: TrainingSettings
    extra: TrainingSettings
    shares: tuple[float, ...]
    seeds: int
    statistics: int
    refit: int


@dataclass(frozen=True)
class MechanismRun:
    """A mechanism, tuned in one way, at one share of the products."""

    mechanism: str
    protocol: str
    share: float

    @property
    def name(self) -> str:
        return f"{self.mechanism}-{self.protocol}-{self.share:g}".replace(" ", "-")


def runs(shares: Sequence[float]) -> list[MechanismRun]:
    """Everything that is tuned; each also tells what the mechanism does as a drop-in."""
    found = [
        MechanismRun("full", "tuned", 1.0),
        MechanismRun("mean only", "tuned", 0.0),
        MechanismRun("mean map", "tuned", 0.0),
    ]
    for share in shares:
        found += [
            MechanismRun("interpolated", protocol, share)
            for protocol in ("frozen", "learned", "refit")
        ]
        found.append(MechanismRun("interpolated by query", "learned", share))
        found += [
            MechanismRun(name, "tuned", share)
            for name in ("uniform keys", "linformer", "nystrom", "feature rank")
        ]
    return found


def text_task(experiment: EigenAnalysisTraining) -> MaskedBytes:
    """The documents of the experiment's text, whole ones held out."""
    documents: dict[int, str] = {}
    total = 0
    for piece in pieces([experiment.data], section=2000):
        documents[piece.document] = documents.get(piece.document, "") + piece.text
        total += len(piece.text)
        if total >= experiment.characters:
            break
    return MaskedBytes(
        *split(list(documents.values()), held_out=0.1), length=experiment.model.length
    )


def measure(
    experiment: EigenAnalysisTraining, parts: Parts, progress: Progress
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every run of every seed as one row of quality and cost, and the time of every mechanism."""
    task = text_task(experiment)
    rows = [
        row
        for seed in range(experiment.seeds)
        for row in _one_seed(experiment, task, seed, parts, progress)
    ]
    times = parts.part(
        "training/times",
        lambda: _times(experiment, task, *_base(experiment, task, 0, parts, progress)),
    )
    return rows, times


def _base(
    experiment: EigenAnalysisTraining,
    task: MaskedBytes,
    seed: int,
    parts: Parts,
    progress: Progress,
) -> tuple[Transformer, list[LayerMoments]]:
    """The model with full attention, trained or found trained, and its moments."""
    torch.manual_seed(seed)
    base = Transformer(experiment.model)
    checkpoint = parts.folder / f"training/seed-{seed}/base.safetensors"
    settings = replace(experiment.base, seed=seed)
    train(
        base,
        task,
        settings,
        progress=progress,
        label="training full attention",
        checkpoint=checkpoint,
    )
    return base, layer_moments(base, task, experiment.statistics, settings.batch, seed + 1000)


def _one_seed(
    experiment: EigenAnalysisTraining,
    task: MaskedBytes,
    seed: int,
    parts: Parts,
    progress: Progress,
) -> list[dict[str, Any]]:
    names = {run: f"training/seed-{seed}/{run.name}" for run in runs(experiment.shares)}
    if all(map(parts.has, names.values())):
        return [row for name in names.values() for row in parts.read(name)]
    base = _base(experiment, task, seed, parts, progress)
    makes = {
        name: partial(_one_run, experiment, task, *base, run, seed, progress)
        for run, name in names.items()
    }
    stage = f"tuning {numbered(len(makes), 'mechanism')}"
    return [row for rows in parts.each(makes, progress, stage) for row in rows]


def _one_run(
    experiment: EigenAnalysisTraining,
    task: MaskedBytes,
    base: Transformer,
    found: list[LayerMoments],
    run: MechanismRun,
    seed: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Rows of one mechanism: dropped in, and tuned."""
    torch.manual_seed(seed)
    model = Transformer(experiment.model)
    model.load_state_dict(base.state_dict())
    learned = run.protocol in {"learned", "tuned"}
    model.attend_with(
        make_mechanism(run.mechanism, run.share, experiment.model, found, learned=learned)
    )
    # other inputs than those the base has seen first
    settings = replace(experiment.extra, seed=seed + 100)
    n = experiment.model.length
    shared = {
        "mechanism": run.mechanism,
        "share": run.share,
        "seed": seed,
        "attention_multiply_adds": model.attention_cost(n),
        "model_multiply_adds": model.cost(n),
    }
    loss, accuracy = evaluate(model, task)
    rows = [
        {
            **shared,
            "protocol": "drop-in",
            "loss": loss,
            "accuracy": accuracy,
            "training_flops": 0.0,
            "seconds": 0.0,
        }
    ]

    def refit(step: int) -> None:
        if step and step % experiment.refit == 0:
            for layer, x in enumerate(
                layer_moments(
                    model, task, experiment.statistics // 4, settings.batch, seed + 2000 + step
                )
            ):
                mechanism = model.mechanisms[layer]
                assert isinstance(mechanism, InterpolatedKeys)
                mechanism.refit(x.mean, x.covariance)

    done = train(
        model,
        task,
        settings,
        progress=progress,
        label=f"tuning {run.mechanism}, {run.protocol}",
        before=refit if run.protocol == "refit" else None,
    )
    rows.append(
        {
            **shared,
            "protocol": run.protocol,
            "loss": done.loss,
            "accuracy": done.accuracy,
            "training_flops": done.flops,
            "seconds": done.seconds,
        }
    )
    return rows


def _times(
    experiment: EigenAnalysisTraining,
    task: MaskedBytes,
    base: Transformer,
    found: list[LayerMoments],
    rounds: int = 15,
) -> list[dict[str, Any]]:
    """Seconds of a forward pass, and of a forward and backward pass over a batch.

    Each is the fastest of a few.

    All mechanisms take turns, so that what else the machine does meets them alike.
    """
    models = {}
    for run in runs(experiment.shares):
        model = Transformer(experiment.model)
        model.load_state_dict(base.state_dict())
        models[run.mechanism, run.share] = model.attend_with(
            make_mechanism(run.mechanism, run.share, experiment.model, found)
        )
    batch = task.batch(experiment.extra.batch, 0, 0)
    best = {key: {"forward_seconds": math.inf, "step_seconds": math.inf} for key in models}
    for _ in range(rounds):
        for key, model in models.items():
            begin = time.perf_counter()
            with torch.no_grad():
                model(batch.inputs)
            middle = time.perf_counter()
            model(batch.inputs).logsumexp(2).mean().backward()
            end = time.perf_counter()
            for name, seconds in (
                ("forward_seconds", middle - begin),
                ("step_seconds", end - middle),
            ):
                best[key][name] = min(best[key][name], seconds)
    return [
        {"mechanism": mechanism, "share": share, **best[mechanism, share]}
        for mechanism, share in best
    ]


FULL = EigenAnalysisTraining(
    data="wikipedia",
    characters=8_000_000,
    model=Config(MaskedBytes.vocabulary, length=128, width=64, layers=3, heads=2),
    base=TrainingSettings(2000, rate=4e-3, measure=250),
    extra=TrainingSettings(150, rate=1e-3, warmup=10, measure=75),
    shares=(0.125, 0.25, 0.5),
    seeds=3,
    statistics=32,
    refit=40,
)
QUICK = EigenAnalysisTraining(
    data="python-docs",
    characters=400_000,
    model=Config(MaskedBytes.vocabulary, length=32, width=64, layers=2, heads=2),
    base=TrainingSettings(400, batch=32, rate=6e-3, measure=200),
    extra=TrainingSettings(20, batch=32, rate=1e-3, warmup=4, measure=20),
    shares=(0.25,),
    seeds=1,
    statistics=8,
    refit=10,
)
