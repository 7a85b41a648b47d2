"""What a model can be trained on, and the first such task: masked language modelling on the bytes of real text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import EigenlensError

MASK = 256
IGNORED = -100
"""The target of a place that is not asked for: cross-entropy leaves it out."""


@dataclass(frozen=True)
class Batch:
    """`inputs` (B, T) of tokens or (B, T, features) of vectors, and `targets`, one for every output of the model.

    A target is a class, or `IGNORED`: (B, T), for a pooled model (B,). Or it is a vector, (B, T, classes), to come close to.
    """

    inputs: Tensor
    targets: Tensor


class Task(Protocol):
    """Batches to learn from, which depend on nothing but seed and step, and those that every model is measured on."""

    length: int

    def batch(self, size: int, seed: int, step: int) -> Batch: ...

    def held_out(self) -> Iterator[Batch]: ...


def split(documents: Sequence[str], held_out: float = 0.1, seed: int = 0) -> tuple[list[str], list[str]]:
    """Whole documents for training and, at least `held_out` of all characters, for measuring."""
    if len(documents) < 2:
        raise EigenlensError(f"{len(documents)} document cannot be split; give at least two")
    order = list(range(len(documents)))
    random.Random(seed).shuffle(order)
    wanted = held_out * sum(map(len, documents))
    held: list[int] = []
    while len(held) < len(documents) - 1 and sum(len(documents[i]) for i in held) < wanted:
        held.append(order[len(held)])
    kept = set(held)
    return [d for i, d in enumerate(documents) if i not in kept], [documents[i] for i in held]


class MaskedBytes:
    """Guess the bytes of a text that were masked, from those that were not.

    Bytes are tokens 0 … 255 and `MASK` is 256. A share `masked` of the positions of every input is masked, the same
    number in each. Measured on fixed windows of the held-out documents with fixed masks: every model is asked the same.
    """

    vocabulary = 257

    def __init__(
        self, train: Sequence[str], held: Sequence[str], length: int = 128, masked: float = 0.15, windows: int = 256
    ) -> None:
        self.length = length
        self.number = max(1, round(masked * length))
        self.train, self.held = _bytes(train), _bytes(held)
        for name, part in (("training", self.train), ("held-out", self.held)):
            if len(part) < 2 * length:
                raise EigenlensError(f"the {name} text has {len(part)} bytes, less than two inputs of {length}")
        windows = min(windows, len(self.held) // length)
        starts = torch.linspace(0, len(self.held) - length, windows).long()
        self.asked = self._masked(self.held, starts, torch.Generator().manual_seed(1))

    def batch(self, size: int, seed: int, step: int) -> Batch:
        """The training inputs of a step: they depend on nothing but seed and step, so that a run can be resumed."""
        generator = torch.Generator().manual_seed((seed << 32) + step)
        starts = torch.randint(len(self.train) - self.length + 1, (size,), generator=generator)
        return self._masked(self.train, starts, generator)

    def held_out(self, size: int = 64) -> Iterator[Batch]:
        for start in range(0, len(self.asked.inputs), size):
            yield Batch(self.asked.inputs[start : start + size], self.asked.targets[start : start + size])

    def _masked(self, text: Tensor, starts: Tensor, generator: torch.Generator) -> Batch:
        tokens = text[starts[:, None] + torch.arange(self.length)].long()  # (B, T)
        hidden = torch.rand(tokens.shape, generator=generator).topk(self.number, dim=1).indices
        chosen = torch.zeros(tokens.shape, dtype=torch.bool).scatter(1, hidden, True)
        return Batch(tokens.masked_fill(chosen, MASK), tokens.masked_fill(~chosen, IGNORED))


def _bytes(texts: Sequence[str]) -> Tensor:
    """All documents in a row with a blank line between them, as uint8."""
    return torch.frombuffer(bytearray("\n\n".join(texts).encode("utf-8")), dtype=torch.uint8)
