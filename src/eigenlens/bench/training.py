"""The small models that mechanisms are trained in: two tasks, one shape, equal weights."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import EigenlensError
from ..lab import Config, Digits, NextBytes, Trained, TrainingSettings, Transformer, train
from ..lab.training_loop import Point
from ..run.files import disk_errors, read_json, read_tensors, write_json, write_tensors
from ..run.progress import Progress, silent
from .entrants import FULL, SMALL, ours, settings_for

TASKS: dict[str, bool] = {"next bytes": True, "digits": False}
"""The tasks by name, and whether they are causal.

The next byte of a text, and the digit in 64 pixels.
"""
TOLERANCE = 0.01
"""The share by which the number of weights may differ from full attention's."""


@dataclass(frozen=True)
class LabScale:
    """The shape of the models and their training; `tasks` are names of `TASKS`."""

    tasks: tuple[str, ...] = ("next bytes", "digits")
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 250
    batch: int = 8
    rate: float = 3e-3
    length: int = 64
    width: int = 64
    layers: int = 2
    heads: int = 4
    windows: int = 128
    characters: int = 400_000


@functools.lru_cache(4)
def task_named(name: str, scale: LabScale) -> Any:
    """A task of `TASKS` at the length of the bench."""
    if name == "next bytes":
        options = {"length": scale.length, "windows": scale.windows}
        return NextBytes.from_data("python-docs", characters=scale.characters, **options)
    if name == "digits":
        return Digits("pixels")
    raise EigenlensError(f"no task {name!r} of the bench; there are {', '.join(TASKS)}")


def config_of(
    task: Any,
    mechanism: Any,
    scale: LabScale,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """The model of a task with a mechanism.

    The width of its MLP is chosen so that it has as many weights as the model with full attention.

    A unit of the MLP has `2·width + 1` weights in each layer; what a mechanism brings is taken from
    there.
    """
    shape = {"width": scale.width, "layers": scale.layers, "heads": scale.heads}
    own = (
        {mechanism: settings_for(mechanism, SMALL)}
        if settings is None and isinstance(mechanism, str)
        else settings or {}
    )
    full = task.config(**shape, mechanism=FULL, mlp_width=4 * scale.width)
    mine = task.config(
        **shape, mechanism=mechanism, mechanism_settings=own, mlp_width=4 * scale.width
    )
    target, found = weights_of(full), weights_of(mine)
    wide = 4 * scale.width - round((found - target) / (scale.layers * (2 * scale.width + 1)))
    if wide < 1:
        raise EigenlensError(
            f"{mechanism} brings {found - target:,} weights, more than the MLPs of this bench have"
        )
    mine = replace(mine, mlp_width=wide)
    if abs(weights_of(mine) / target - 1) > TOLERANCE:
        raise EigenlensError(f"{mechanism} cannot be given as many weights as full attention has")
    return mine


def weights_of(config: Config) -> int:
    """How many weights a model of this shape has."""
    with torch.random.fork_rng(devices=[]):
        return sum(p.numel() for p in Transformer(config).parameters())


def trained(
    task: Any,
    config: Config,
    seed: int,
    scale: LabScale,
    store: Path | None,
    progress: Progress = silent,
    label: str = "training a model",
) -> tuple[Transformer, Trained]:
    """A model trained from a seed.

    With a `store` it is kept there, and the same one is not trained twice.
    """
    torch.manual_seed(seed)
    model = Transformer(config)
    settings = TrainingSettings(
        steps=scale.steps, batch=scale.batch, rate=scale.rate, measure=scale.steps, seed=seed
    )
    asked = {
        "config": asdict(config),
        "settings": asdict(settings),
        "task": type(task).__name__,
        "text": scale.characters,
    }
    asked["sources"] = sorted(
        {inspect.getsource(type(one)) for one in model.mechanisms if not ours(type(one))}
    )
    key = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]
    place = None if store is None else store / key
    if place is not None and place.with_suffix(".json").is_file():
        model.load_state_dict(read_tensors(place.with_suffix(".safetensors")))
        kept = read_json(place.with_suffix(".json"))
        try:
            return model.eval(), Trained(
                **{**kept, "curve": tuple(Point(**point) for point in kept["curve"])}
            )
        except (KeyError, TypeError) as error:
            raise EigenlensError(
                f"{place.with_suffix('.json')} is damaged: {error!r}; delete it to train anew"
            ) from error
    found = train(model, task, settings, progress=progress, label=label)
    if place is not None:
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(place.with_suffix(".safetensors"), dict(model.state_dict()))
        write_json(place.with_suffix(".json"), asdict(found))
    return model.eval(), found


def spread(values: list[float]) -> tuple[float, float, float]:
    """Mean, least and largest over seeds."""
    return sum(values) / len(values), min(values), max(values)
