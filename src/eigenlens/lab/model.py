"""One small transformer for every training experiment. Read it from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.gates import Gate
from ..errors import EigenlensError
from .config import Config
from .fusion import Fusion
from .layers import build_mechanisms, gate_of


class Attention(nn.Module):
    """Queries, keys and values, a mechanism for their output, and the way back into the stream.

    A mechanism is a `Mechanism` of `eigenlens.attention`, or any module `(q, k, v, causal=…) → out`
    with `cost(n, d)` in multiply-adds per head. A gate `σ(x W)` of the stream x acts on one of:
    queries, keys, values, the heads' output, the output.
    """

    def __init__(self, config: Config, mechanism: nn.Module) -> None:
        super().__init__()
        H, D, E = config.heads, config.head_width, config.head_values
        self.heads, self.causal, self.sizes = H, config.causal, (H * D, H * D, H * E)
        # rows of all queries, all keys, all values
        self.project = nn.Linear(config.width, sum(self.sizes))
        self.mechanism = mechanism
        self.out = nn.Linear(H * E, config.width)
        self.gate_position: str | None = None
        self.gate: Gate | None = None
        if config.gate is not None:
            settings = gate_of(config.gate)
            self.gate_position = settings.position
            self.gate = Gate(
                settings, config.width, H, D if self.gate_position in ("G3", "G4") else E
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.head_outputs(x)  # (B, H, T, E)
        # heads side by side: (B, T, H·E) → (B, T, C)
        return self.gated("G5", x, self.out(y.transpose(1, 2).flatten(2)))

    def head_outputs(self, x: Tensor) -> Tensor:
        """What every head gives to the output projection, (B, H, T, E)."""
        q, k, v = self.queries_keys_values(x)
        return self.gated("G1", x, self.mechanism(q, k, v, **self._terms(x)))

    def pattern(self, x: Tensor) -> Tensor:
        """A (B, H, T, T), which weighs the values."""
        weights: Any = getattr(self.mechanism, "weights", None)
        if weights is None:
            raise EigenlensError(
                f"{type(self.mechanism).__name__} does not say which weights it gives to values"
            )
        q, k, _ = self.queries_keys_values(x)
        return weights(q, k, **self._terms(x))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, T, D) twice and (B, H, T, E), gated where a gate stands there."""
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.project(x).split(self.sizes, 2)
        )
        return self.gated("G4", x, q), self.gated("G3", x, k), self.gated("G2", x, v)

    def gated(self, position: str, x: Tensor, y: Tensor) -> Tensor:
        return self.gate(x, y) if self.gate is not None and self.gate_position == position else y

    def _terms(self, x: Tensor) -> dict[str, Any]:
        return {
            "causal": self.causal,
            **({"x": x} if getattr(self.mechanism, "reads_stream", False) else {}),
        }

    @property
    def w_q(self) -> Tensor:
        """(H, C, D): the queries of head h are `x w_q[h]`, but for their bias."""
        return (
            self.project.weight.split(self.sizes)[0].unflatten(0, (self.heads, -1)).transpose(1, 2)
        )

    @property
    def w_k(self) -> Tensor:
        """(H, C, D)."""
        return (
            self.project.weight.split(self.sizes)[1].unflatten(0, (self.heads, -1)).transpose(1, 2)
        )

    @property
    def w_o(self) -> Tensor:
        """(H, E, C): head h adds `z[h] w_o[h]` to the output."""
        return self.out.weight.T.unflatten(0, (self.heads, -1))


class LabBlock(nn.Module):
    """Two sublayers, attention and an MLP.

    `y = [skip]·x + branch(norm(x))`, or post-norm `y = norm([skip]·x + branch(x))`.

    A branch that is off passes x on, whatever its skip; a part that is off has no weights.
    """

    def __init__(self, config: Config, mechanism: nn.Module) -> None:
        super().__init__()
        self.switches = on = config.switches
        self.post, self.activation = config.norm_position == "post", config.activation
        wide = 4 * config.width if config.mlp_width is None else config.mlp_width
        self.norm_1 = nn.LayerNorm(config.width) if on.norm and on.attention else nn.Identity()
        self.attention = Attention(config, mechanism) if on.attention else None
        self.norm_2 = nn.LayerNorm(config.width) if on.norm and on.mlp else nn.Identity()
        self.wide = nn.Linear(config.width, wide) if on.mlp else None
        self.narrow = nn.Linear(wide, config.width) if on.mlp else None

    def forward(self, x: Tensor) -> Tensor:
        if self.attention is not None:
            y = self.attention(x if self.post else self.norm_1(x))
            x = x + y if self.switches.attention_skip else y
            x = self.norm_1(x) if self.post else x
        if self.wide is not None and self.narrow is not None:
            y = self.narrow(self.act(self.wide(x if self.post else self.norm_2(x))))
            x = x + y if self.switches.mlp_skip else y
            x = self.norm_2(x) if self.post else x
        return x

    def act(self, z: Tensor) -> Tensor:
        return F.relu(z) if self.activation == "relu" else F.gelu(z, approximate="tanh")


class Transformer(nn.Module):
    """Token ids (B, T) or vectors (B, T, features) to logits.

    The logits are (B, T, vocabulary or classes), or (B, classes) where tokens are pooled.

    Positions are learned. At the `neighbourly` start they are sinusoids larger than the tokens, and
    keys are projected like queries, so that a token looks at its neighbourhood. From a start
    without any such order a model of this size learns little more of a text than the frequency of
    characters for most of its training.

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
        self.tokens = (
            nn.Embedding(config.vocabulary, config.width) if config.vocabulary is not None else None
        )
        self.vectors = (
            nn.Linear(config.features, config.width) if config.features is not None else None
        )
        self.positions = nn.Embedding(config.length, config.width) if config.positions else None
        chosen = build_mechanisms(config) if mechanisms is None else mechanisms
        if len(chosen) != config.layers:
            raise EigenlensError(f"{len(chosen)} mechanisms were given for {config.layers} layers")
        self.blocks = nn.ModuleList(LabBlock(config, mechanism) for mechanism in chosen)
        self.fusion = (
            Fusion(config.fusion, config.layers, config.width)
            if config.fusion is not None
            else None
        )
        self.norm = (
            nn.LayerNorm(config.width)
            if config.norm and config.norm_position == "pre"
            else nn.Identity()
        )
        self.readout = (
            nn.Linear(config.width, config.classes) if config.classes is not None else None
        )
        self._start()

    def forward(self, inputs: Tensor) -> Tensor:
        streams = [self.embed(inputs)]
        for block in self.blocks:
            streams.append(block(streams[-1]))
        x = streams[-1] if self.fusion is None else self.fusion(streams[1:])
        return self.read(self.norm(x))

    def embed(self, inputs: Tensor) -> Tensor:
        """The stream before the first block, (B, T, C)."""
        T = inputs.shape[1]
        if self.config.length < T:
            raise EigenlensError(f"an input of {T} tokens is over the model's {self.config.length}")
        embedding = self.tokens if self.tokens is not None else self.vectors
        assert embedding is not None  # the configuration has one of them
        x = embedding(inputs)
        return (
            x
            if self.positions is None
            else x + self.positions(torch.arange(T, device=inputs.device))
        )

    def read(self, x: Tensor) -> Tensor:
        """What the model says of a stream (B, T, C) behind the last norm."""
        if self.config.pooled:
            x = x.mean(1)  # (B, C)
        if self.readout is not None:
            return self.readout(x)
        assert self.tokens is not None
        return F.linear(x, self.tokens.weight)

    @property
    def attentions(self) -> list[Attention]:
        """The attention of every layer, from the bottom; none where it is off."""
        return [block.attention for block in self.blocks if block.attention is not None]  # type: ignore[misc]

    @property
    def mechanisms(self) -> list[Any]:
        """The mechanism of every layer, from the bottom; none where attention is off."""
        return [attention.mechanism for attention in self.attentions]

    def attend_with(self, mechanisms: Sequence[nn.Module]) -> Transformer:
        """Give every layer another mechanism, in place; all other weights stay."""
        if len(mechanisms) != len(self.mechanisms):
            raise EigenlensError(
                f"{len(mechanisms)} mechanisms were given for {len(self.mechanisms)} layers"
            )
        for attention, mechanism in zip(self.attentions, mechanisms):
            attention.mechanism = mechanism
        return self

    def patterns(self, inputs: Tensor) -> list[Tensor]:
        """A (B, H, T, T) of every layer: how its heads weigh the values."""
        return [
            attention.pattern(x) for attention, x in zip(self.attentions, self.attended(inputs))
        ]

    def head_outputs(self, inputs: Tensor) -> list[Tensor]:
        """z (B, H, T, E) of every layer.

        It is what the heads of a layer give to the output projection `attention.w_o`.
        """
        return [
            attention.head_outputs(x)
            for attention, x in zip(self.attentions, self.attended(inputs))
        ]

    def attended(self, inputs: Tensor) -> list[Tensor]:
        """x (B, T, C) that the attention of every layer is given."""
        found: list[Tensor] = []
        hooks = [
            a.register_forward_pre_hook(lambda _, given: found.append(given[0]))
            for a in self.attentions
        ]
        try:
            self(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def attention_cost(self, n: int) -> int:
        """Multiply-adds of all heads' mechanisms for one input of n tokens.

        The mean of what they cost at the width of keys and at that of values.
        """
        D, E = self.config.head_width, self.config.head_values
        return sum(self.config.heads * (m.cost(n, D) + m.cost(n, E)) // 2 for m in self.mechanisms)

    def cost(self, n: int) -> int:
        """Multiply-adds of one forward pass over n tokens.

        They are those of the mechanisms, and n for every weight of the other matrices.
        """
        own = {id(module) for mechanism in self.mechanisms for module in mechanism.modules()}
        linear = [
            module
            for module in self.modules()
            if isinstance(module, nn.Linear) and id(module) not in own
        ]
        weights = sum(module.weight.numel() for module in linear)
        weights += sum(
            attention.gate.weight.numel()
            for attention in self.attentions
            if attention.gate is not None
        )
        if self.readout is None and self.tokens is not None:
            weights += self.tokens.weight.numel()
        # for all tokens
        once = self.readout.weight.numel() if self.config.pooled and self.readout is not None else 0
        return self.attention_cost(n) + n * (weights - once) + once

    def _start(self) -> None:
        """Weights at the start; mechanisms, gates and fusion have begun in their own way."""
        config = self.config
        for path, module in self.named_modules():
            if any(part in path.split(".") for part in ("mechanism", "gate", "fusion")):
                continue
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=config.size)
            if isinstance(module, nn.Linear):
                nn.init.normal_(
                    module.weight,
                    std=config.size if module is self.vectors else module.in_features**-0.5,
                )
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if config.neighbourly and self.positions is not None:
            self.positions.weight.data = sinusoids(config.length, config.width) * 4 * config.size
        for attention in self.attentions:
            if config.neighbourly:
                queries, keys, _ = attention.project.weight.data.split(attention.sizes)
                keys.copy_(queries)
        for name, weight in self.named_parameters():
            # 2 · layers of them add up in the stream
            if name.endswith(("attention.out.weight", "narrow.weight")):
                weight.data *= (2 * config.layers) ** -0.5


def sinusoids(length: int, width: int) -> Tensor:
    """`sin(tω)` and `cos(tω)` of position t, (length, width).

    For width/2 frequencies ω from π/2 down to π/40.

    Their products fall off within about ten positions, and neighbours are far enough apart to be
    told from each other.
    """
    half = width // 2
    # (length, width/2)
    waves = torch.arange(length)[:, None] * (torch.pi / 2) * 20.0 ** -(torch.arange(half) / half)
    return torch.cat([waves.sin(), waves.cos(), torch.zeros(length, width % 2)], 1)
