"""One small transformer for every training experiment. Read it from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.softmax import Softmax
from ..errors import EigenlensError
from ..switches import Switches


@dataclass(frozen=True)
class Config:
    """The shape of the model; the last five take a part out of every block.

    The input is token ids of a `vocabulary`, or vectors of `features` numbers through a linear map. The output is logits
    of the vocabulary, by the weights of the embedding, or `classes` numbers a token by a read-out of its own; `pooled`,
    the mean of all tokens is read out. Without `positions` the model sees a set. `neighbourly` is the start for text,
    `size` the standard deviation of an embedded input at the start (for vectors: of one of unit length).
    """

    vocabulary: int | None = None
    length: int = 128
    width: int = 128
    layers: int = 4
    heads: int = 4
    causal: bool = False
    features: int | None = None
    classes: int | None = None
    pooled: bool = False
    positions: bool = True
    neighbourly: bool = True
    size: float = 0.1
    attention_skip: bool = True
    mlp_skip: bool = True
    mlp: bool = True
    norm: bool = True
    attention: bool = True

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise EigenlensError(f"a width of {self.width} does not divide into {self.heads} heads")
        if (self.vocabulary is None) == (self.features is None):
            raise EigenlensError(
                f"the input is token ids or vectors: give one of vocabulary={self.vocabulary}, features={self.features}"
            )
        if self.classes is None and (self.features is not None or self.pooled):
            raise EigenlensError("a model of vectors, or one that pools its tokens, needs a read-out of its own: give classes")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def switches(self) -> Switches:
        return Switches(self.attention_skip, self.mlp_skip, self.mlp, self.norm, self.attention)


class Attention(nn.Module):
    """Queries, keys and values, whichever mechanism turns them into an output, and the way back into the stream.

    A mechanism is a module `(q, k, v, causal) → out`, all (B, H, T, D), with `cost(n, d)` in multiply-adds a head.
    """

    def __init__(self, config: Config, mechanism: nn.Module) -> None:
        super().__init__()
        self.heads, self.causal = config.heads, config.causal
        self.project = nn.Linear(config.width, 3 * config.width)
        self.mechanism = mechanism
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.project(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)  # 3 × (B, H, T, D)
        y = self.mechanism(q, k, v, causal=self.causal)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(B, T, C))  # heads side by side: (B, T, C)


class Block(nn.Module):
    """Two sublayers, attention and an MLP of four times the width: `y = [skip]·x + branch(norm(x))`.

    A branch that is off passes x on, whatever its skip; a part that is off has no weights.
    """

    def __init__(self, config: Config, mechanism: nn.Module) -> None:
        super().__init__()
        self.switches = on = config.switches
        self.norm_1 = nn.LayerNorm(config.width) if on.norm and on.attention else nn.Identity()
        self.attention = Attention(config, mechanism) if on.attention else None
        self.norm_2 = nn.LayerNorm(config.width) if on.norm and on.mlp else nn.Identity()
        self.wide = nn.Linear(config.width, 4 * config.width) if on.mlp else None
        self.narrow = nn.Linear(4 * config.width, config.width) if on.mlp else None

    def forward(self, x: Tensor) -> Tensor:
        if self.attention is not None:
            y = self.attention(self.norm_1(x))
            x = x + y if self.switches.attention_skip else y
        if self.wide is not None and self.narrow is not None:
            y = self.narrow(F.gelu(self.wide(self.norm_2(x)), approximate="tanh"))
            x = x + y if self.switches.mlp_skip else y
        return x


class Transformer(nn.Module):
    """Token ids (B, T) or vectors (B, T, features) to logits (B, T, vocabulary or classes), pooled (B, classes).

    Positions are learned. At the `neighbourly` start they are sinusoids larger than the tokens, and keys are projected
    like queries, so that a token looks at its neighbourhood. From a start without any such order a model of this size
    learns little more of a text than the frequency of characters for most of its training.

    >>> model = Transformer(Config(vocabulary=257))
    >>> model(torch.zeros(2, 128, dtype=torch.long)).shape
    torch.Size([2, 128, 257])
    >>> model = Transformer(Config(features=2, classes=3, pooled=True, positions=False))
    >>> model(torch.zeros(5, 10, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, config: Config, mechanisms: Sequence[nn.Module] | None = None) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width) if config.vocabulary is not None else None
        self.vectors = nn.Linear(config.features, config.width) if config.features is not None else None
        self.positions = nn.Embedding(config.length, config.width) if config.positions else None
        chosen = mechanisms or [Softmax() for _ in range(config.layers)]
        if len(chosen) != config.layers:
            raise EigenlensError(f"{len(chosen)} mechanisms were given for {config.layers} layers")
        self.blocks = nn.ModuleList(Block(config, mechanism) for mechanism in chosen)
        self.norm = nn.LayerNorm(config.width) if config.norm else nn.Identity()
        self.readout = nn.Linear(config.width, config.classes) if config.classes is not None else None
        self._start()

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.embed(inputs)
        for block in self.blocks:
            x = block(x)
        return self.read(self.norm(x))

    def embed(self, inputs: Tensor) -> Tensor:
        """The stream before the first block, (B, T, C)."""
        T = inputs.shape[1]
        if self.config.length < T:
            raise EigenlensError(f"an input of {T} tokens is over the model's {self.config.length}")
        embedding = self.tokens if self.tokens is not None else self.vectors
        assert embedding is not None  # the configuration has one of them
        x = embedding(inputs)
        return x if self.positions is None else x + self.positions(torch.arange(T, device=inputs.device))

    def read(self, x: Tensor) -> Tensor:
        """What the model says of a stream (B, T, C) behind the last norm."""
        if self.config.pooled:
            x = x.mean(1)  # (B, C)
        if self.readout is not None:
            return self.readout(x)
        assert self.tokens is not None
        return F.linear(x, self.tokens.weight)

    @property
    def mechanisms(self) -> list[Any]:
        """The mechanism of every layer, from the bottom; none where attention is off."""
        return [block.attention.mechanism for block in self.blocks if block.switches.attention]  # type: ignore[union-attr]

    def attend_with(self, mechanisms: Sequence[nn.Module]) -> Transformer:
        """Give every layer another mechanism, in place; all other weights stay."""
        if len(mechanisms) != len(self.mechanisms):
            raise EigenlensError(f"{len(mechanisms)} mechanisms were given for {len(self.mechanisms)} layers")
        for block, mechanism in zip(self.blocks, mechanisms):
            block.attention.mechanism = mechanism  # type: ignore[union-attr]
        return self

    def attention_cost(self, n: int) -> int:
        """Multiply-adds of all heads' mechanisms for one input of n tokens."""
        return sum(self.config.heads * mechanism.cost(n, self.config.head_width) for mechanism in self.mechanisms)

    def cost(self, n: int) -> int:
        """Multiply-adds of one forward pass over n tokens: the mechanisms, and `n` for every weight of a matrix."""
        weights = sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))
        if self.readout is None and self.tokens is not None:
            weights += self.tokens.weight.numel()
        once = self.readout.weight.numel() if self.config.pooled and self.readout is not None else 0  # for all tokens
        return self.attention_cost(n) + n * (weights - once) + once

    def _start(self) -> None:
        config = self.config
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=config.size)
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.size if module is self.vectors else module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if config.neighbourly and self.positions is not None:
            self.positions.weight.data = sinusoids(config.length, config.width) * 4 * config.size
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "narrow.weight")):  # 2 · layers of them add up in the stream
                weight.data *= (2 * config.layers) ** -0.5
            if name.endswith("project.weight") and config.neighbourly:
                queries, keys, _ = weight.data.chunk(3)
                keys.copy_(queries)


def sinusoids(length: int, width: int) -> Tensor:
    """`sin(tω)` and `cos(tω)` of position t, (length, width), for width/2 frequencies ω from π/2 down to π/40.

    Their products fall off within about ten positions, and neighbours are far enough apart to be told from each other.
    """
    half = width // 2
    waves = torch.arange(length)[:, None] * (torch.pi / 2) * 20.0 ** -(torch.arange(half) / half)  # (length, width/2)
    return torch.cat([waves.sin(), waves.cos(), torch.zeros(length, width % 2)], 1)
