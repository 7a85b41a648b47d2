"""The task of finding which of the given points is nearest to the query (arXiv 2407.16153).

One head of full rank solves it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..errors import EigenlensError
from .config import Config
from .tasks import TaskBatch


class NearestNeighbour:
    """`points` (N) on the unit sphere of `dimension` (d), and a query on it: find the nearest.

    A token has 2d numbers: a point stands in the first d of them, the query, the last token, in the
    others. So a head whose queries read the one half and whose keys the other, `W_QᵀW_K = βI`,
    finds the nearest by its score, and the query's own score is 0. The target stands at the query,
    (B, N + 1, d); the other places are nan, which is not asked for. The loss is the mean squared
    error of a number; d times it is the squared distance to the target, which is 1 for the answer
    0.

    >>> NearestNeighbour(points=16, dimension=8).batch(4, seed=0, step=0).inputs.shape
    torch.Size([4, 17, 16])
    """

    def __init__(
        self,
        points: int = 16,
        dimension: int = 8,
        farthest: bool = False,
        test: int = 2000,
        seed: int = 0,
    ) -> None:
        if points < 2 or dimension < 1:
            raise EigenlensError(
                f"there are at least 2 points of at least 1 dimension, not {points} of {dimension}"
            )
        self.points, self.dimension, self.farthest = points, dimension, farthest
        self.features, self.classes, self.length = 2 * dimension, dimension, points + 1
        self.test = self._drawn(test, torch.Generator().manual_seed((1 << 62) + seed))

    def batch(self, size: int, seed: int, step: int) -> TaskBatch:
        return self._drawn(size, torch.Generator().manual_seed((seed << 32) + step))

    def held_out(self, size: int = 500) -> Iterator[TaskBatch]:
        for start in range(0, len(self.test.inputs), size):
            yield TaskBatch(
                self.test.inputs[start : start + size], self.test.targets[start : start + size]
            )

    def config(self, **shape: Any) -> Config:
        """A model of a set of vectors; all else as given."""
        own = {"features": self.features, "classes": self.classes, "length": self.length}
        return Config(**{**own, "positions": False, "neighbourly": False, "size": 1.0, **shape})

    def _drawn(self, size: int, generator: torch.Generator) -> TaskBatch:
        d = self.dimension
        drawn = torch.randn(size, self.length, d, generator=generator)
        drawn /= drawn.norm(dim=2, keepdim=True)
        points, query = drawn[:, :-1], drawn[:, -1:]
        # (B, N): on the sphere the nearest has the largest product
        near = (points @ query.transpose(1, 2)).squeeze(2)
        chosen = near.argmin(1) if self.farthest else near.argmax(1)
        inputs = torch.zeros(size, self.length, 2 * d)
        inputs[:, :-1, :d], inputs[:, -1:, d:] = points, query
        targets = torch.full((size, self.length, d), torch.nan)
        targets[:, -1] = points[torch.arange(size), chosen]
        return TaskBatch(inputs, targets)
