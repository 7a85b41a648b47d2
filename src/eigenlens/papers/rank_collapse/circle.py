"""Two opposing points go round a circle, led by one layer of attention that is fed its own output.

Do they stay apart?

One layer applied again and again is a deep network of shared weights. In pure attention the
difference of two points is multiplied by a difference of patterns that itself shrinks with the
square of theirs; trained on the circle alone, such a layer has its radius as a point to fall off
from, inwards until the points merge or outwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...collapses import VARIANTS
from ...display import numbered
from ...lab import Circle, TrainingSettings, Transformer, feed_back, train
from ...run.parts import Parts
from ...run.progress import Progress, silent

SHOWN = ("SAN", "SAN+MLP", "SAN+skip")
"""The variants that are fed back, all without norms."""
AWAY = 10.0
"""A point farther from the centre than so many radii has left the circle: its trajectory ends."""


@dataclass(frozen=True)
class CircleTrial:
    """How the circle is learned, and for how many `steps` it is fed back.

    The points to learn from are off the circle by N(0, `jitter`²).
    """

    jitter: float
    settings: TrainingSettings
    steps: int = 300


def circles(
    trials: Sequence[CircleTrial], seeds: int, parts: Parts, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """A row for every trial, variant and seed.

    It has the trajectory of both points, and their distance, radius and turn at every step.

    `turn` is in steps of the arc that was learned: a model that follows it makes one per step.
    `left` is the step at which a point was more than `AWAY` radii off, where the lists end; None if
    it never was. `merged`: the distance fell to a tenth. `stretch`, see that function, says whether
    the circle holds the points.
    """
    runs = list(itertools.product(trials, SHOWN, range(seeds)))
    return parts.each(
        {_name(*run): partial(_one, *run, parts, progress) for run in runs},
        progress or silent,
        f"training {numbered(len(runs), 'model')} to follow a circle",
    )


def _name(trial: CircleTrial, variant: str, seed: int) -> str:
    return f"collapse/circle/{variant.lower()}-{trial.jitter:g}/seed-{seed}"


def _one(
    trial: CircleTrial, variant: str, seed: int, parts: Parts, progress: Progress | None
) -> dict[str, Any]:
    circle = Circle(jitter=trial.jitter)
    torch.manual_seed(seed)
    switches = replace(VARIANTS[variant], norm=False)
    model = Transformer(circle.config(layers=1, heads=2, width=32, size=1.0, **asdict(switches)))
    done = train(
        model,
        circle,
        replace(trial.settings, seed=seed),
        progress=progress,
        label=f"training {variant} to follow a circle",
        checkpoint=parts.checkpoint(_name(trial, variant, seed)),
    )
    path = feed_back(model, circle.train.inputs[0], trial.steps).double()
    return {
        "settings": "ours",
        "variant": variant,
        "jitter": trial.jitter,
        "seed": seed,
        "loss": done.loss,
        "stretch": stretch(model, circle.train.inputs),
        **orbit_row(path, circle.radius, circle.turn),
    }


@torch.no_grad()
def stretch(model: Callable[[Tensor], Tensor], inputs: Tensor, step: float = 0.01) -> float:
    """How the distance of two points after a step follows their distance before it.

    `d ln |y₁ − y₂| / d ln |x₁ − x₂|` as two points (N, 2, 2) move towards their origin, mean over
    inputs.

    Over one, points that have come a little too near come nearer still in every step, and points
    too far apart go farther.
    """
    near, far = (model(inputs * (1 + s)).diff(dim=1).norm(dim=2) for s in (-step, step))  # (N, 1)
    return float((far / near).log().mean() / math.log((1 + step) / (1 - step)))


def orbit_row(path: Tensor, radius: float, turn: float) -> dict[str, Any]:
    """How a path (steps+1, 2 points, 2) goes round the origin, see `circles`."""
    radii = path.norm(dim=2).mean(1)  # (steps+1,)
    off = (~(path.norm(dim=2).amax(1) <= AWAY * radius)).nonzero()  # nan is off too
    left = int(off[0]) if len(off) else None
    path, radii = path[:left], radii[:left]
    a, b = path[:-1], path[1:]
    # of a step, mean of both
    angle = torch.atan2(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0], (a * b).sum(2)).mean(1)
    distance = (path[:, 0] - path[:, 1]).norm(dim=1)
    return {
        "left": left,
        "merged": bool(distance.min() < 0.1 * distance[0]),
        "distance": distance.tolist(),
        "radius": radii.tolist(),
        "turn": [0.0, *(angle.cumsum(0) / turn).tolist()],
        "trajectory": path.tolist(),
    }
