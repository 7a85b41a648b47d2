"""The transformer of the authors' training scripts, and its paths one by one.

A block is `x ← norm(x + attention(x))`, with `norm(x + mlp(x))` behind it where there is an MLP; an
input is embedded as `norm(W e)`. Unlike a transformer of `eigenlens.lab` it has dropout, a second
layer in the embedding, and its own start: values and outputs uniform within `±1/√C`, all other
weights N(0, 0.02²).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SKIPPED = -1
"""The head of a layer that a path passes by."""


@dataclass(frozen=True)
class AuthorsShape:
    """What a model reads and says, and its size.

    `vocabulary` of tokens, or `features` of vectors, which `embedding` linear layers with a GELU
    between them bring to the `width`. `positions` is how many places are told apart; 0 leaves a
    set. Without `adds_input` the blocks of the whole model have no skip around attention.
    """

    classes: int
    layers: int
    heads: int
    width: int
    vocabulary: int | None = None
    features: int | None = None
    embedding: int = 1
    positions: int = 0
    mlp: bool = False
    adds_input: bool = True
    dropout: float = 0.1


class AuthorsModel(nn.Module):
    """Token ids (B, T) or vectors (B, T, features) to logits (B, T, classes)."""

    def __init__(self, shape: AuthorsShape) -> None:
        super().__init__()
        self.shape, C = shape, shape.width
        self.tokens = None if shape.vocabulary is None else nn.Embedding(shape.vocabulary, C)
        self.places = nn.Embedding(shape.positions, C) if shape.positions else None
        widths = [shape.features or C, *[C] * shape.embedding]
        self.embedding = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norm = nn.LayerNorm(C)
        self.blocks = nn.ModuleList(AuthorsBlock(shape) for _ in range(shape.layers))
        self.readout = nn.Linear(C, shape.classes)
        self.dropout = nn.Dropout(shape.dropout)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
                if name.rpartition(".")[2] in ("values", "out"):
                    nn.init.uniform_(module.weight, -1 / math.sqrt(C), 1 / math.sqrt(C))

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.embed(inputs)
        for block in self.blocks:
            x = block(x)
        return self.readout(self.dropout(x))

    def embed(self, inputs: Tensor) -> Tensor:
        """The stream before the first block, (B, T, C)."""
        x = inputs if self.tokens is None else self.tokens(inputs)
        if self.places is not None:
            x = x + self.places(torch.arange(x.shape[1], device=x.device))
        for number, linear in enumerate(self.embedding):
            x = linear(F.gelu(x) if number else x)
        return self.dropout(self.norm(x))

    def along_paths(self, inputs: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """The logits (B, T, classes) of a few paths together, without dropout.

        A path has a head for every layer, or `SKIPPED`. Where it has a head the stream is
        `norm(the head's output)` and nothing of what came in; norms on the path have no gains. The
        streams are added up, and the norm of their sum is read out.
        """
        C, start = self.shape.width, self.embed(inputs)
        total = torch.zeros_like(start)
        for path in paths:
            x = start
            for block, head in zip(self.blocks, path):
                if head != SKIPPED:
                    x = block.rest(F.layer_norm(block.of_head(x, head), (C,)))  # type: ignore[operator]
            total = total + x
        return self.readout(F.layer_norm(total, (C,)))


class AuthorsBlock(nn.Module):
    """Attention whose heads can run alone, then an MLP if there is one."""

    def __init__(self, shape: AuthorsShape) -> None:
        super().__init__()
        C, self.heads, self.adds_input = shape.width, shape.heads, shape.adds_input
        self.queries, self.keys, self.values = (nn.Linear(C, C) for _ in range(3))
        self.out = nn.Linear(C, C)
        self.norm_1 = nn.LayerNorm(C)
        self.wide = nn.Linear(C, C) if shape.mlp else None
        self.narrow = nn.Linear(C, C) if shape.mlp else None
        self.norm_2 = nn.LayerNorm(C) if shape.mlp else None
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = (self.patterns(x) @ self._split(self.values(x))).transpose(1, 2).flatten(2)
        y = self.dropout(self.out(y))
        return self.rest(self.norm_1(x + y if self.adds_input else y))

    def of_head(self, x: Tensor, head: int) -> Tensor:
        """What one head and the bias of the output projection add, (B, T, C)."""
        D = x.shape[2] // self.heads
        mine = slice(head * D, (head + 1) * D)
        q, k, v = (
            F.linear(x, linear.weight[mine], linear.bias[mine])
            for linear in (self.queries, self.keys, self.values)
        )  # (B, T, D) each
        pattern = self.dropout((q @ k.mT / math.sqrt(D)).softmax(2))
        return pattern @ v @ self.out.weight[:, mine].T + self.out.bias

    def patterns(self, x: Tensor) -> Tensor:
        """(B, H, T, T)."""
        q, k = self._split(self.queries(x)), self._split(self.keys(x))
        return self.dropout((q @ k.mT / math.sqrt(q.shape[3])).softmax(3))

    def rest(self, x: Tensor) -> Tensor:
        """The block behind attention and its norm."""
        if self.wide is None or self.narrow is None or self.norm_2 is None:
            return x
        return self.norm_2(x + self.dropout(self.narrow(F.gelu(self.wide(x)))))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, H, T, D)
