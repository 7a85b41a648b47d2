"""Which stream of tokens each observed attention writes to and which it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import EigenlensError
from .observed import Observed, Stream


@dataclass(frozen=True, eq=False)
class Step:
    """One attention: tokens of the stream `queries` read those of `keys`.

    A and ∂score/∂A are (B, H, T, S).
    """

    queries: str
    keys: str
    weights: Tensor
    gradient: Tensor

    @property
    def is_self(self) -> bool:
        return self.queries == self.keys


def steps_of(observed: Observed) -> list[Step]:
    """The attentions in the order the model runs them, by the names of their stacks.

    A cross-attention reads from the stream that ran last before it and has as many tokens as it has
    keys. Tokens that no stack of the model makes are a stream of their own, `decoder.memory`.
    Stacks of one length without any cross-attention follow each other, as one stream with the name
    of the last. A self-attention that changes the number of tokens (a pooling head) is left out:
    `reads` tells what it reads.
    """
    B = len(observed.score)
    if wrong := next((p for p in observed.patterns if len(p.weights) != B), None):
        raise EigenlensError(
            f"the attention {wrong.site} has {len(wrong.weights)} patterns for {B} inputs: tokens"
            " that attend within windows have no single map of relevance"
        )
    square = [
        p
        for p in observed.patterns
        if p.kind == "cross" or p.weights.shape[2] == p.weights.shape[3]
    ]
    lengths = {p.stream: p.weights.shape[2] for p in square if p.kind == "self"}
    if not any(p.kind == "cross" for p in square) and len(set(lengths.values())) == 1:
        last = observed.streams[-1].stack
        return [Step(last, last, p.weights, p.gradient) for p in square]
    steps: list[Step] = []
    for p in square:
        if p.kind == "self":
            steps.append(Step(p.stream, p.stream, p.weights, p.gradient))
            continue
        own, S = p.stream, p.weights.shape[3]
        ran = [step.queries for step in reversed(steps)]
        other = next(
            (name for name in (*ran, *lengths) if name != own and lengths.get(name) == S),
            f"{own}.memory",
        )
        steps.append(Step(own, other, p.weights, p.gradient))
    return steps


def stream_sizes(steps: Sequence[Step]) -> dict[str, int]:
    """The number of tokens of every stream."""
    found: dict[str, int] = {}
    for step in steps:
        found.setdefault(step.queries, step.weights.shape[2])
        found.setdefault(step.keys, step.weights.shape[3])
    return found


def read_streams(steps: Sequence[Step]) -> list[str]:
    """The streams whose last tokens the target reads.

    These are all streams except those that only pass their tokens to another stream.
    """
    given = {step.keys for step in steps if not step.is_self} - {
        step.queries for step in steps if not step.is_self
    }
    return [name for name in stream_sizes(steps) if name not in given]


def source_name(steps: Sequence[Step]) -> str:
    """The name of the stream to explain: the encoder of an encoder-decoder, else the first."""
    names = list(stream_sizes(steps))
    return next((name for name in names if name not in read_streams(steps)), names[0])


def source_stream(observed: Observed) -> Stream:
    """The stream whose tokens are explained."""
    steps = steps_of(observed)
    if len(stream_sizes(steps)) == 1:
        return observed.streams[0]
    name = source_name(steps)
    found = observed.stream(name)
    if found is None:
        raise EigenlensError(
            f"the tokens of {name} come from outside the model, so only the method relevance works"
            " for them"
        )
    return found


def read_weights(observed: Observed, steps: Sequence[Step]) -> dict[str, Tensor]:
    """How much the target reads each output token of its streams, (B, T) each.

    The weights add up to 1 for every input.
    """
    names, length = read_streams(steps), stream_sizes(steps)
    known = {name: stream for name in names if (stream := observed.stream(name)) is not None}
    if not known:
        B = len(observed.score)
        return {
            name: observed.score.new_full((B, length[name]), 1 / length[name] / len(names))
            for name in names
        }
    total = {
        name: (s.output_gradient.norm(dim=-1) * s.valid).sum(1, keepdim=True)
        for name, s in known.items()
    }
    whole = torch.stack(list(total.values())).sum(0)  # (B, 1)
    share = {
        name: torch.where(whole > 0, t / torch.where(whole > 0, whole, 1), 1 / len(total))
        for name, t in total.items()
    }
    return {name: share[name] * observed.reads(name) for name in known}
