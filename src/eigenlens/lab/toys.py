"""Tasks small enough to look into a model that has learned them.

They are sorting, repeats, the convex hull, memorising, and two arcs.

All are fixed by a seed. `vocabulary` or `features`, `classes`, `length`, `pooled` and `ordered`
(whether places mean something) say which model a task asks for, see `Toy.config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import EigenlensError
from .config import Config
from .tasks import IGNORED, TaskBatch


class Toy:
    """Fixed training and test sequences; a batch is a draw from the first."""

    vocabulary: int | None = None
    features: int | None = None
    classes: int
    length: int
    pooled = False
    ordered = True

    def __init__(self, train: TaskBatch, test: TaskBatch) -> None:
        self.train, self.test = train, test

    def batch(self, size: int, seed: int, step: int) -> TaskBatch:
        generator = torch.Generator().manual_seed((seed << 32) + step)
        return _part(
            self.train, torch.randint(len(self.train.inputs), (size,), generator=generator)
        )

    def held_out(self, size: int = 100) -> Iterator[TaskBatch]:
        for chosen in torch.arange(len(self.test.inputs)).split(size):
            yield _part(self.test, chosen)

    def config(self, **shape: Any) -> Config:
        """A model of this task's inputs and outputs; width, layers, heads and switches as given."""
        own = {
            "vocabulary": self.vocabulary,
            "features": self.features,
            "classes": self.classes,
            "length": self.length,
            "pooled": self.pooled,
            "positions": self.ordered,
            "neighbourly": False,
        }
        return Config(**{**own, **shape})


class Sort(Toy):
    """8 letters, drawn from an alphabet of 10.

    At place i the i-th of them in sorted order is asked for.
    """

    vocabulary = classes = 10
    length = 8

    def __init__(self, train: int = 1000, test: int = 200, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        letters = torch.randint(self.classes, (train + test, self.length), generator=generator)
        super().__init__(*_halves(letters, letters.sort(1).values, train))


class Repeated(Toy):
    """`letters` different letters of an alphabet, each repeated `repeats` times.

    The frames of speech repeat sounds in this way.

    With `asks="sorted"` the i-th in sorted order is asked for at every place of the i-th letter:
    what all letters are, and not how often they stand there. With `asks="previous"` it is the
    letter before this one, at every place but the first's.

    >>> # such as 7 7 2 2 5 5, to be sorted as 2 2 5 5 7 7
    >>> Repeated(letters=3, repeats=2, alphabet=9).train.inputs[0]
    """

    def __init__(
        self,
        letters: int = 8,
        repeats: int = 4,
        alphabet: int = 16,
        asks: Literal["sorted", "previous"] = "sorted",
        train: int = 4000,
        test: int = 400,
        seed: int = 0,
    ) -> None:
        if not 2 <= letters <= alphabet:
            raise EigenlensError(
                f"from an alphabet of {alphabet}, 2 to {alphabet} different letters can be drawn,"
                f" not {letters}"
            )
        if asks not in ("sorted", "previous"):
            raise EigenlensError(f"asks is 'sorted' or 'previous', not {asks!r}")
        self.vocabulary = self.classes = alphabet
        self.length = letters * repeats
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(train + test, alphabet, generator=generator).argsort(1)[:, :letters]
        if asks == "sorted":
            wanted = drawn.sort(1).values
        else:
            wanted = torch.cat([torch.full_like(drawn[:, :1], IGNORED), drawn[:, :-1]], 1)
        super().__init__(
            *_halves(
                drawn.repeat_interleave(repeats, 1), wanted.repeat_interleave(repeats, 1), train
            )
        )


class ConvexHull(Toy):
    """10 points, uniform in a square of side 10 that is shifted by N(0, 3.3²) per sequence.

    Which are the hull's vertices?
    """

    features = classes = 2
    length = 10
    ordered = False

    def __init__(self, train: int = 10_000, test: int = 300, seed: int = 0) -> None:
        from scipy.spatial import ConvexHull as hull

        generator = torch.Generator().manual_seed(seed)
        points = 10 * torch.rand(train + test, self.length, 2, generator=generator)
        points += 3.3 * torch.randn(train + test, 1, 2, generator=generator)
        labels = torch.zeros(points.shape[:2], dtype=torch.long)
        for label, sequence in zip(labels, points.double().numpy()):
            label[hull(sequence).vertices.tolist()] = 1
        super().__init__(*_halves(points, labels, train))


class Memorise(Toy):
    """500 sequences of 128 random tokens, each with a random one of two labels.

    Measured on the same sequences.

    There is nothing to learn but the sequences themselves: a model that has not seen them is right
    in half of them.
    """

    classes = 2
    pooled = True

    def __init__(
        self, number: int = 500, length: int = 128, vocabulary: int = 1000, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocabulary, self.length = vocabulary, length
        tokens = torch.randint(vocabulary, (number, length), generator=generator)
        whole = TaskBatch(tokens, torch.randint(2, (number,), generator=generator))
        super().__init__(whole, whole)


class Circle(Toy):
    """Two opposing points of a circle of radius 0.3, each on its way along one half of it.

    Where are they next?

    `points` of each arc, from angle 0 to π and from π to 2π; a sequence is the t-th point of both,
    its target the next of both. Measured on the same sequences; what counts is `feed_back`. With
    `jitter` the points that are learned from are off the circle by N(0, jitter²), their targets are
    not: a model learns the way back.
    """

    features = classes = 2
    length = 2
    ordered = False
    radius = 0.3

    def __init__(self, points: int = 1000, jitter: float = 0.0) -> None:
        angle = torch.linspace(0, torch.pi, points, dtype=torch.float64)
        arc = self.radius * torch.stack([angle.cos(), angle.sin()], 1)  # (points, 2)
        both = torch.stack([arc, -arc], 1).float()  # (points, 2 tokens, 2)
        whole = TaskBatch(both[:-1], both[1:])
        super().__init__(whole, whole)
        self.turn, self.jitter = torch.pi / (points - 1), jitter

    def batch(self, size: int, seed: int, step: int) -> TaskBatch:
        exact = super().batch(size, seed, step)
        # not the numbers that drew the points
        generator = torch.Generator().manual_seed((1 << 62) + (seed << 32) + step)
        noise = torch.randn(exact.inputs.shape, generator=generator)
        return TaskBatch(exact.inputs + self.jitter * noise, exact.targets)


@torch.no_grad()
def feed_back(model: torch.nn.Module, start: Tensor, steps: int) -> Tensor:
    """The inputs that a model of vectors makes of its own outputs, (steps + 1, T, features).

    The first of them is the given (T, features).
    """
    found = [start]
    for _ in range(steps):
        found.append(model(found[-1][None])[0])
    return torch.stack(found)


def _part(whole: TaskBatch, chosen: Tensor) -> TaskBatch:
    return TaskBatch(whole.inputs[chosen], whole.targets[chosen])


def _halves(inputs: Tensor, targets: Tensor, train: int) -> tuple[TaskBatch, TaskBatch]:
    return TaskBatch(inputs[:train], targets[:train]), TaskBatch(inputs[train:], targets[train:])
