"""Handwritten digits, real and small: scikit-learn's 1,797 pictures of 8×8."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from ..data.datasets import images
from ..errors import EigenlensError
from .tasks import TaskBatch
from .toys import Toy


class Digits(Toy):
    """Which digit is it?

    A picture is 64 tokens of one pixel each, or 8 tokens of a row; the mean of all is read out.

    Ink is from 0 to 1. `test` pictures, drawn by the seed, are held out.
    """

    classes = 10
    pooled = True

    def __init__(
        self, tokens: Literal["pixels", "rows"] = "rows", test: int = 360, seed: int = 0
    ) -> None:
        if tokens not in ("pixels", "rows"):
            raise EigenlensError(f"tokens is 'pixels' or 'rows', not {tokens!r}")
        pictures, labels = zip(*images("digits"))
        ink = torch.from_numpy(np.stack(pictures)).float() / 255  # (1797, 8, 8)
        inputs = ink.flatten(1)[..., None] if tokens == "pixels" else ink
        self.length, self.features = inputs.shape[1:]
        if not 0 < test < len(inputs):
            raise EigenlensError(
                f"of {len(inputs)} digits at least 1 and not all are held out, not {test}"
            )
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        classes = torch.tensor(labels)
        held, kept = order[:test], order[test:]
        super().__init__(
            TaskBatch(inputs[kept], classes[kept]), TaskBatch(inputs[held], classes[held])
        )
