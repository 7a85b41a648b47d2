"""What a model can be trained on, and the tasks of real text.

These are masked bytes, the next byte and the next token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..data.text import pieces
from ..errors import EigenlensError
from .config import Config

MASK = 256
IGNORED = -100
"""The target of a place that is not asked for: cross-entropy leaves it out."""


@dataclass(frozen=True)
class TaskBatch:
    """`inputs` (B, T) of tokens or (B, T, features) of vectors, and their `targets`.

    There is one target for every output of the model.

    A target is a class, or `IGNORED`: (B, T), for a pooled model (B,). Or it is a vector, (B, T,
    classes), to come close to; one of nan is not asked for.
    """

    inputs: Tensor
    targets: Tensor

    def to(self, device: torch.device | str) -> TaskBatch:
        return TaskBatch(self.inputs.to(device), self.targets.to(device))


class LearningTask(Protocol):
    """Batches to learn from, and those that every model is measured on.

    The first depend on nothing but seed and step.
    """

    length: int

    def batch(self, size: int, seed: int, step: int) -> TaskBatch: ...

    def held_out(self) -> Iterator[TaskBatch]: ...

    def config(self, **shape: Any) -> Config: ...


def documents(
    data: str | Path | Sequence[str | Path] = "python-docs", characters: int | None = None
) -> list[str]:
    """Whole documents of a named text, files or folders, until there are `characters`.

    A few large files come in sections.
    """
    found: dict[int, str] = {}
    total = 0
    for piece in pieces([data] if isinstance(data, str | Path) else list(data), section=2000):
        found[piece.document] = found.get(piece.document, "") + piece.text
        total += len(piece.text)
        if characters is not None and total >= characters:
            break
    return list(found.values())


def split(
    documents: Sequence[str], held_out: float = 0.1, seed: int = 0
) -> tuple[list[str], list[str]]:
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


Kind = TypeVar("Kind", bound="Text")


class Text:
    """A task of text: windows of `length` tokens.

    Those to learn from are drawn from the training documents; those to measure on are fixed ones of
    the held-out documents.
    """

    vocabulary: int
    length: int
    causal = False

    def __init__(self, train: Sequence[str], held: Sequence[str], length: int = 128) -> None:
        raise NotImplementedError

    @classmethod
    def from_data(
        cls: type[Kind],
        data: str | Path | Sequence[str | Path] = "python-docs",
        characters: int | None = 400_000,
        held_out: float = 0.1,
        **options: Any,
    ) -> Kind:
        """The task of a named text, files or folders; whole documents are held out.

        >>> NextBytes.from_data("python-docs", length=64)
        """
        return cls(*split(documents(data, characters), held_out), **options)

    def config(self, **shape: Any) -> Config:
        """A model of this task's inputs and outputs; all else as given."""
        return Config(
            **{"vocabulary": self.vocabulary, "length": self.length, "causal": self.causal, **shape}
        )


class MaskedBytes(Text):
    """Guess the bytes of a text that were masked, from those that were not.

    Bytes are tokens 0 … 255 and `MASK` is 256. A share `masked` of the positions of every input is
    masked, the same number in each. Measured on fixed windows of the held-out documents with fixed
    masks: every model is asked the same.
    """

    vocabulary = 257

    def __init__(
        self,
        train: Sequence[str],
        held: Sequence[str],
        length: int = 128,
        masked: float = 0.15,
        windows: int = 256,
    ) -> None:
        self.length = length
        self.number = max(1, round(masked * length))
        self.train, self.held = _bytes(train), _bytes(held)
        _enough(self.train, self.held, length, "bytes")
        windows = min(windows, len(self.held) // length)
        starts = torch.linspace(0, len(self.held) - length, windows).long()
        self.asked = self._masked(self.held, starts, torch.Generator().manual_seed(1))

    def batch(self, size: int, seed: int, step: int) -> TaskBatch:
        """The training inputs of a step.

        They depend on nothing but seed and step, so that a run can be resumed.
        """
        generator = torch.Generator().manual_seed((seed << 32) + step)
        starts = torch.randint(len(self.train) - self.length + 1, (size,), generator=generator)
        return self._masked(self.train, starts, generator)

    def held_out(self, size: int = 64) -> Iterator[TaskBatch]:
        for start in range(0, len(self.asked.inputs), size):
            yield TaskBatch(
                self.asked.inputs[start : start + size], self.asked.targets[start : start + size]
            )

    def _masked(self, text: Tensor, starts: Tensor, generator: torch.Generator) -> TaskBatch:
        tokens = text[starts[:, None] + torch.arange(self.length)].long()  # (B, T)
        hidden = torch.rand(tokens.shape, generator=generator).topk(self.number, dim=1).indices
        chosen = torch.zeros(tokens.shape, dtype=torch.bool).scatter(1, hidden, True)
        return TaskBatch(tokens.masked_fill(chosen, MASK), tokens.masked_fill(~chosen, IGNORED))


class NextBytes(Text):
    """Guess the next byte of a text from those before it.

    `targets[t] = inputs[t + 1]`, at every place.

    With `start` every input begins with a token of its own, as those of most language models do, in
    place of its first byte. Measured on fixed windows of the held-out documents.
    """

    causal = True

    def __init__(
        self,
        train: Sequence[str],
        held: Sequence[str],
        length: int = 128,
        windows: int = 256,
        start: bool = False,
    ) -> None:
        self.length, self.start = length, 256 if start else None
        self.vocabulary = 256 + start
        self._windows(_bytes(train), _bytes(held), windows, "bytes")

    def batch(self, size: int, seed: int, step: int) -> TaskBatch:
        generator = torch.Generator().manual_seed((seed << 32) + step)
        return self._at(
            self.train, torch.randint(len(self.train) - self.length, (size,), generator=generator)
        )

    def held_out(self, size: int = 64) -> Iterator[TaskBatch]:
        for starts in self.starts.split(size):
            yield self._at(self.held, starts)

    def _windows(self, train: Tensor, held: Tensor, windows: int, what: str) -> None:
        _enough(train, held, self.length, what)
        self.train, self.held = train, held
        windows = min(windows, (len(held) - 1) // self.length)
        self.starts = torch.linspace(0, len(held) - self.length - 1, windows).long()

    def _at(self, text: Tensor, starts: Tensor) -> TaskBatch:
        tokens = text[starts[:, None] + torch.arange(self.length + 1)].long()  # (B, T + 1)
        if self.start is not None:
            tokens[:, 0] = self.start
        return TaskBatch(tokens[:, :-1], tokens[:, 1:])


class NextTokens(NextBytes):
    """Guess the next token; tokens are merged byte pairs, learned from the training documents.

    There are `vocabulary` of them. `bytes_per_token` of the held-out text tells how a loss per
    token compares with one per byte: divide by it.
    """

    def __init__(
        self,
        train: Sequence[str],
        held: Sequence[str],
        length: int = 128,
        vocabulary: int = 512,
        windows: int = 256,
        start: bool = False,
    ) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        if vocabulary < 256:
            raise EigenlensError(
                f"a vocabulary of byte pairs holds the 256 bytes first; {vocabulary} is less"
            )
        self.length = length
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, initial_alphabet=sorted(alphabet), show_progress=False
        )
        self.tokenizer.train_from_iterator(train, trainer)
        self.vocabulary = self.tokenizer.get_vocab_size() + start
        self.start = self.vocabulary - 1 if start else None
        joined = BETWEEN.join(held)
        self._windows(self._encoded(BETWEEN.join(train)), self._encoded(joined), windows, "tokens")
        self.bytes_per_token = len(joined.encode()) / len(self.held)

    def _encoded(self, text: str) -> Tensor:
        return torch.tensor(self.tokenizer.encode(text).ids, dtype=torch.int32)


BETWEEN = "\n\n"
"""What stands between documents."""


def _enough(train: Tensor, held: Tensor, length: int, what: str) -> None:
    for name, part in (("training", train), ("held-out", held)):
        if len(part) < 2 * length:
            raise EigenlensError(
                f"the {name} text has {len(part)} {what}, less than two inputs of {length}"
            )


def _bytes(texts: Sequence[str]) -> Tensor:
    """All documents in a row with a blank line between them, as uint8."""
    return torch.frombuffer(bytearray(BETWEEN.join(texts).encode("utf-8")), dtype=torch.uint8)
