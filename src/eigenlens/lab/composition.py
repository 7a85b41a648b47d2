"""Function composition with the functions given in context (arXiv 2602.01763).

The answer needs one look-up after the other:

    f_L(… f_2(f_1(q)))

An input is the tables of L random functions of N values, two tokens per entry (which function of
which value, and its value there), then q, then L − 1 tokens that ask on: at q stands `f_1(q)`, at
the next `f_2(f_1(q))`, at the last the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import EigenlensError
from .config import Config
from .tasks import IGNORED, TaskBatch

Order = Literal["forward", "backward", "shuffled"]


class Composition:
    """The answer of `functions` (L) random functions of `values` (N), one after the other.

    Every input has functions of its own.

    `order` of the entries: those of f_1 first ("forward"), those of f_L first ("backward"), each
    table in a random order of its own, or all entries "shuffled". With `intermediate` every step on
    the way is asked for in training, else only the last. With `curriculum`, the steps at which
    training goes on to the next function, only the first f_1 … f_l are asked for until then.
    Measured on the last answer alone, of `test` fixed inputs; chance is about 1/N.

    >>> # 18 tokens: 2 · 4 entries of 2 tokens, q, one more
    >>> Composition(functions=2, values=4).batch(8, seed=0, step=0).inputs.shape
    torch.Size([8, 18])
    """

    def __init__(
        self,
        functions: int = 2,
        values: int = 8,
        order: Order = "shuffled",
        intermediate: bool = True,
        curriculum: Sequence[int] = (),
        test: int = 512,
        seed: int = 0,
    ) -> None:
        if functions < 1 or values < 2:
            raise EigenlensError(
                f"a composition has at least 1 function on at least 2 values, not {functions} on"
                f" {values}"
            )
        if order not in get_args(Order):
            raise EigenlensError(
                f"no order {order!r} of tables; there are {', '.join(get_args(Order))}"
            )
        if curriculum and len(curriculum) != functions - 1:
            raise EigenlensError(
                f"a curriculum of {functions} functions has {functions - 1} steps, not"
                f" {len(curriculum)}"
            )
        self.functions, self.values, self.order = functions, values, order
        self.intermediate, self.curriculum = intermediate, tuple(curriculum)
        self.classes = values
        self.ask = functions * values + values
        self.vocabulary = self.ask + 1  # entries (l, x), values, and the token that asks on
        self.length = 2 * functions * values + functions
        self.test = self._drawn(
            test, torch.Generator().manual_seed((1 << 62) + seed), functions, intermediate=False
        )

    def batch(self, size: int, seed: int, step: int) -> TaskBatch:
        asked = 1 + sum(step >= at for at in self.curriculum) if self.curriculum else self.functions
        return self._drawn(
            size, torch.Generator().manual_seed((seed << 32) + step), asked, self.intermediate
        )

    def held_out(self, size: int = 128) -> Iterator[TaskBatch]:
        for start in range(0, len(self.test.inputs), size):
            yield TaskBatch(
                self.test.inputs[start : start + size], self.test.targets[start : start + size]
            )

    def config(self, **shape: Any) -> Config:
        """A causal model of this task; all else as given."""
        own = {
            "vocabulary": self.vocabulary,
            "classes": self.classes,
            "length": self.length,
            "causal": True,
        }
        return Config(**{**own, "neighbourly": False, **shape})

    def _drawn(
        self, size: int, generator: torch.Generator, asked: int, intermediate: bool
    ) -> TaskBatch:
        L, N = self.functions, self.values
        tables = torch.randint(N, (size, L, N), generator=generator)  # f_l(x)
        entries = self._order(size, generator)  # (B, L·N): which (l, x) stands where
        # (B, 2·L·N)
        pairs = torch.stack([entries, L * N + tables.flatten(1).gather(1, entries)], 2).flatten(1)
        value = torch.randint(N, (size,), generator=generator)
        asks = torch.full((size, L - 1), self.ask)
        inputs = torch.cat([pairs, L * N + value[:, None], asks], 1)
        targets = torch.full(inputs.shape, IGNORED)
        for step in range(asked):
            value = tables[torch.arange(size), step, value]
            if intermediate or step == asked - 1:
                targets[:, 2 * L * N + step] = value
        return TaskBatch(inputs, targets)

    def _order(self, size: int, generator: torch.Generator) -> Tensor:
        L, N = self.functions, self.values
        if self.order == "shuffled":
            return torch.rand(size, L * N, generator=generator).argsort(1)
        within = (
            torch.rand(size, L, N, generator=generator).argsort(2) + N * torch.arange(L)[:, None]
        )
        return (within.flip(1) if self.order == "backward" else within).flatten(1)
