"""The circle as the authors' script trains it, and how two points go round by its own output.

The points of a circle are `θ_t = 2πt/N`; a sequence is a point and the one half a turn further, its
target the next of both. One block of `AuthorsModel` learns them in their order. It adds its input
to what attention gives even where the paper speaks of no skip; `SAN without its input` leaves that
out. The script's skip is one more: batch k is added to batch k+1 in training, and the output to the
input when it is fed back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress, silent
from .authors_model import AuthorsModel, AuthorsShape
from .circle import orbit_row

AUTHORS = "authors"
"""The settings of a row, beside "ours"."""
RADIUS = 0.3
LAYER = AuthorsShape(2, layers=1, heads=2, width=32, features=2)


@dataclass(frozen=True)
class AuthorsVariant:
    """The block that is fed back; with `carries` its output is added to what it is fed."""

    name: str
    shape: AuthorsShape
    carries: bool = False


VARIANTS = (
    AuthorsVariant("SAN", LAYER),
    AuthorsVariant("SAN without its input", replace(LAYER, adds_input=False)),
    AuthorsVariant("SAN+MLP", replace(LAYER, mlp=True)),
    AuthorsVariant("SAN+skip", LAYER, carries=True),
)


@dataclass(frozen=True)
class AuthorsCircle:
    """Adam at a constant rate over batches in order, the loss summed over a batch."""

    points: int = 1000
    epochs: int = 70
    batch: int = 30
    rate: float = 1e-5
    steps: int = 300
    seeds: int = 6


def sequences(points: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (N, 2 points, 2), in the order of the circle."""
    angle = 2 * math.pi * torch.arange(points) / points
    circle = RADIUS * torch.stack([angle.cos(), angle.sin()], 1)  # (points, 2)
    number = points // 2 - 1
    pairs = torch.stack([circle[: number + 1], circle[number : 2 * number + 1]], 1)
    return pairs[:-1], pairs[1:]


def train_circle(
    variant: AuthorsVariant, circle: AuthorsCircle, seed: int
) -> tuple[AuthorsModel, float]:
    """The trained block, and its mean squared error per number on the circle."""
    torch.manual_seed(seed)
    model = AuthorsModel(variant.shape)
    inputs, targets = sequences(circle.points)
    optimiser = torch.optim.Adam(model.parameters(), lr=circle.rate)
    for _ in range(circle.epochs):
        before = torch.zeros_like(inputs[: circle.batch])
        for x, y in zip(inputs.split(circle.batch), targets.split(circle.batch)):
            given = x + before[: len(x)] if variant.carries else x
            loss = (model(given) - y).square().sum()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            before = x
    model.eval()
    with torch.no_grad():
        return model, float((model(inputs) - targets).square().mean())


@torch.no_grad()
def fed_back(model: AuthorsModel, variant: AuthorsVariant, start: Tensor, steps: int) -> Tensor:
    """The start (2, 2) and what the block says step by step, (steps + 1, 2 points, 2)."""
    found, given = [start], start
    for _ in range(steps):
        said = model(given[None])[0]
        found.append(said)
        given = given + said if variant.carries else said
    return torch.stack(found)


def circle_run(variant: AuthorsVariant, circle: AuthorsCircle, seed: int) -> dict[str, Any]:
    """One trajectory, as `circle.orbit_row` describes it, and how well the circle was learned."""
    model, error = train_circle(variant, circle, seed)
    inputs, _ = sequences(circle.points)
    path = fed_back(model, variant, inputs[0], circle.steps).double()
    return {
        "settings": AUTHORS,
        "variant": variant.name,
        "seed": seed,
        "error": error / (RADIUS**2 / 2),  # of the variance of a coordinate
        **orbit_row(path, RADIUS, 2 * math.pi / circle.points),
    }


def authors_circles(
    circle: AuthorsCircle, parts: Parts, progress: Progress = silent
) -> list[dict[str, Any]]:
    """A row for every variant and seed."""
    makes = {
        f"authors/circle/{variant.name.lower().replace(' ', '-')}/seed-{seed}": partial(
            circle_run, variant, circle, seed
        )
        for variant in VARIANTS
        for seed in range(circle.seeds)
    }
    stage = f"training {numbered(len(makes), 'model')} to follow a circle as the authors do"
    return parts.each(makes, progress, stage)
