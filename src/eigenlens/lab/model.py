"""One small transformer for every training experiment. Read it from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.full import FullAttention
from ..errors import EigenlensError


@dataclass(frozen=True)
class Config:
    """The shape of the model; `skip`, `mlp` and `norm` take a part out of every block."""

    vocabulary: int
    length: int = 128
    width: int = 128
    layers: int = 4
    heads: int = 4
    causal: bool = False
    skip: bool = True
    mlp: bool = True
    norm: bool = True

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise EigenlensError(f"a width of {self.width} does not divide into {self.heads} heads")

    @property
    def head_width(self) -> int:
        return self.width // self.heads


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
    """Attention, then an MLP of four times the width, each after a norm and beside a skip connection."""

    def __init__(self, config: Config, mechanism: nn.Module) -> None:
        super().__init__()
        self.skip = config.skip
        self.norm_1 = nn.LayerNorm(config.width) if config.norm else nn.Identity()
        self.attention = Attention(config, mechanism)
        self.norm_2 = nn.LayerNorm(config.width) if config.norm else nn.Identity()
        self.wide = nn.Linear(config.width, 4 * config.width) if config.mlp else None
        self.narrow = nn.Linear(4 * config.width, config.width) if config.mlp else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(self.norm_1(x))
        x = x + y if self.skip else y
        if self.wide is None or self.narrow is None:
            return x
        y = self.narrow(F.gelu(self.wide(self.norm_2(x)), approximate="tanh"))
        return x + y if self.skip else y


class Transformer(nn.Module):
    """Token ids (B, T) to logits (B, T, vocabulary).

    Positions are learned, output weights are shared with the embedding. At the start positions are sinusoids larger than
    the tokens, and keys are projected like queries, so that a token looks at its neighbourhood. From a start without any
    such order a model of this size learns little more than the frequency of characters for most of its training.

    >>> model = Transformer(Config(vocabulary=257))
    >>> model(torch.zeros(2, 128, dtype=torch.long)).shape
    torch.Size([2, 128, 257])
    """

    def __init__(self, config: Config, mechanisms: Sequence[nn.Module] | None = None) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.length, config.width)
        chosen = mechanisms or [FullAttention() for _ in range(config.layers)]
        if len(chosen) != config.layers:
            raise EigenlensError(f"{len(chosen)} mechanisms were given for {config.layers} layers")
        self.blocks = nn.ModuleList(Block(config, mechanism) for mechanism in chosen)
        self.norm = nn.LayerNorm(config.width) if config.norm else nn.Identity()
        self.apply(_start)
        self.positions.weight.data = sinusoids(config.length, config.width) * 4 * SIZE
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "narrow.weight")):  # 2 · layers of them add up in the stream
                weight.data *= (2 * config.layers) ** -0.5
            if name.endswith("project.weight"):
                queries, keys, _ = weight.data.chunk(3)
                keys.copy_(queries)

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        if self.config.length < T:
            raise EigenlensError(f"an input of {T} tokens is over the model's {self.config.length}")
        x = self.tokens(ids) + self.positions(torch.arange(T, device=ids.device))  # (B, T, C)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)  # (B, T, vocabulary)

    @property
    def mechanisms(self) -> list[Any]:
        """The mechanism of every layer, from the bottom."""
        return [block.attention.mechanism for block in self.blocks]  # type: ignore[union-attr]

    def attend_with(self, mechanisms: Sequence[nn.Module]) -> Transformer:
        """Give every layer another mechanism, in place; all other weights stay."""
        if len(mechanisms) != self.config.layers:
            raise EigenlensError(f"{len(mechanisms)} mechanisms were given for {self.config.layers} layers")
        for block, mechanism in zip(self.blocks, mechanisms):
            block.attention.mechanism = mechanism  # type: ignore[union-attr]
        return self

    def attention_cost(self, n: int) -> int:
        """Multiply-adds of all heads' mechanisms for one input of n tokens."""
        return sum(self.config.heads * mechanism.cost(n, self.config.head_width) for mechanism in self.mechanisms)

    def cost(self, n: int) -> int:
        """Multiply-adds of one forward pass over n tokens: the mechanisms, and `n` for every weight of a matrix."""
        linear = [module for module in self.modules() if isinstance(module, nn.Linear)]
        weights = sum(module.weight.numel() for module in linear) + self.tokens.weight.numel()
        return self.attention_cost(n) + n * weights


SIZE = 0.1
"""Standard deviation of embeddings at the start: the output weights are the same, so logits start small."""


def sinusoids(length: int, width: int) -> Tensor:
    """`sin(tω)` and `cos(tω)` of position t, (length, width), for width/2 frequencies ω from π/2 down to π/40.

    Their products fall off within about ten positions, and neighbours are far enough apart to be told from each other.
    """
    half = width // 2
    waves = torch.arange(length)[:, None] * (torch.pi / 2) * 20.0 ** -(torch.arange(half) / half)  # (length, width/2)
    return torch.cat([waves.sin(), waves.cos(), torch.zeros(length, width % 2)], 1)


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=SIZE)
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
