"""The settings of the authors' training scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .authors_model import AuthorsShape

Schedule = Literal["constant", "steps", "linear"]
MILESTONES, FACTOR = (15, 30, 40, 50, 60), 0.91
"""Epochs after which the rate of the schedule `steps` falls by the factor."""


@dataclass(frozen=True)
class AuthorsTrial:
    """A task, the model of its script, and the script's training.

    The optimiser is Adam with `decay` as weight decay. The schedule `constant` keeps the rate,
    `steps` lowers it after `MILESTONES`, and `linear` takes it to zero, with gradients clipped to
    norm 1 and sequences in another order in every epoch. `numbers` of paths are read out together,
    `repeats` draws of each. `data` are arguments of the task. Answers are counted on the first
    `test` of the test sequences, on all if it is None.
    """

    task: str
    shape: AuthorsShape
    data: dict[str, Any]
    epochs: int
    batch: int = 30
    rate: float = 1e-5
    decay: float = 0.0
    schedule: Schedule = "constant"
    numbers: tuple[int, ...] = (5, 20)
    repeats: int = 5
    seeds: int = 1
    test: int | None = None


SORT = AuthorsTrial(
    "sort",
    AuthorsShape(10, layers=6, heads=2, width=48, positions=512),
    {"train": 1000, "test": 200},
    epochs=65,
    seeds=3,
)
HULL = AuthorsTrial(
    "convex hull",
    AuthorsShape(2, layers=6, heads=3, width=84, embedding=2),
    {"train": 10_000, "test": 300},
    epochs=70,
    decay=1e-3,
    schedule="steps",
)
MEMORISE = AuthorsTrial(
    "memorise",
    AuthorsShape(2, layers=6, heads=2, width=250, mlp=True),
    {"text": "wikipedia", "number": 500, "length": 128},
    epochs=50,
    batch=8,
    rate=3e-4,
    schedule="linear",
    numbers=(5,),
    test=50,
)
"""The settings of the authors' commands, and of their scripts where a command is silent."""
QUICK_TRIALS = (
    AuthorsTrial(
        "sort",
        AuthorsShape(10, layers=2, heads=2, width=16, positions=8),
        {"train": 90, "test": 30},
        epochs=2,
        rate=1e-3,
        repeats=1,
    ),
    AuthorsTrial(
        "convex hull",
        AuthorsShape(2, layers=2, heads=2, width=16, embedding=2),
        {"train": 90, "test": 30},
        epochs=2,
        rate=1e-3,
        schedule="steps",
        repeats=1,
    ),
    AuthorsTrial(
        "memorise",
        AuthorsShape(2, layers=2, heads=2, width=16, mlp=True),
        {"text": "python-docs", "number": 12, "length": 16},
        epochs=2,
        batch=8,
        rate=1e-3,
        schedule="linear",
        numbers=(5,),
        repeats=1,
    ),
)
