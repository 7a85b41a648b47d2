"""Sinks that a small model learns, with each remedy.

Its heads are needed at few tokens, and idle at all others.

The task is a Markov chain with triggers. What follows an ordinary token depends on that token
alone, so attention is of no use there; what follows a trigger is the token before it, which one
head has to fetch. Every input begins with a token of its own. Under softmax an idle head has to
look somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...lab import Config, TaskBatch, TrainingSettings, Transformer, train
from ...run.progress import Progress

VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "off-by-one": {"mechanism": "off-by-one"},
    "gate a channel (G1)": {"gate": "G1"},
    "gate a head (G1)": {"gate": "G1-head"},
    "head dimension 8": {"heads": 8},
}
"""What differs from a model of softmax and two heads of dimension 32."""
EPSILON = 0.3


@dataclass(frozen=True)
class SinksTraining:
    """The chain, the models and how long they learn."""

    vocabulary: int
    triggers: int
    length: int
    width: int
    layers: int
    heads: int
    steps: int
    batch: int
    rate: float
    seeds: int


class Triggers:
    """`x_{t+1} ~ P(· | x_t)` for ordinary tokens, `x_{t+1} = x_{t−1}` for the first `triggers` ids.

    The task is to guess the next token.

    P is drawn once, from normal logits of deviation 2. The start token has the id `vocabulary`;
    after it a token is drawn from all. `copied` marks the places whose next token is a copy.
    """

    def __init__(self, vocabulary: int, triggers: int, length: int, held: int = 128) -> None:
        self.vocabulary, self.triggers, self.length = vocabulary, triggers, length
        draw = torch.Generator().manual_seed(1234)
        self.chain = (2 * torch.randn(vocabulary, vocabulary, generator=draw)).softmax(1)  # (V, V)
        self._held = self._draw(held, torch.Generator().manual_seed(99))

    def _draw(self, size: int, generator: torch.Generator) -> TaskBatch:
        x = torch.full((size, self.length + 1), self.vocabulary)
        x[:, 1] = torch.randint(self.vocabulary, (size,), generator=generator)
        for t in range(1, self.length):
            drawn = torch.multinomial(self.chain[x[:, t]], 1, generator=generator)[:, 0]
            copies = (x[:, t] < self.triggers) & (x[:, t - 1] != self.vocabulary)
            x[:, t + 1] = torch.where(copies, x[:, t - 1], drawn)
        return TaskBatch(x[:, :-1], x[:, 1:])

    def batch(self, size: int, seed: int, step: int) -> TaskBatch:
        return self._draw(size, torch.Generator().manual_seed((seed << 32) + step))

    def held_out(self) -> Iterator[TaskBatch]:
        yield self._held

    def config(self, **shape: Any) -> Config:
        return Config(
            vocabulary=self.vocabulary + 1,
            length=self.length,
            causal=True,
            neighbourly=False,
            **shape,
        )

    def copied(self, inputs: Tensor) -> Tensor:
        """(B, T) bool."""
        before = torch.cat([torch.full_like(inputs[:, :1], self.vocabulary), inputs[:, :-1]], 1)
        return (inputs < self.triggers) & (before != self.vocabulary)


def one_run(variant: str, scale: SinksTraining, seed: int, progress: Progress) -> dict[str, Any]:
    """One model trained, and its sinks on held-out inputs."""
    task = Triggers(scale.vocabulary, scale.triggers, scale.length)
    shape = {
        "width": scale.width,
        "layers": scale.layers,
        "heads": scale.heads,
        **VARIANTS[variant],
    }
    torch.manual_seed(seed)
    model = Transformer(task.config(**shape))
    settings = TrainingSettings(
        scale.steps, scale.batch, scale.rate, measure=scale.steps, seed=seed
    )
    done = train(model, task, settings, progress=progress, label=f"training {variant}")
    return {
        "attention": variant,
        "seed": seed,
        "steps": done.steps,
        "loss": done.loss,
        **sink_numbers(model, task),
    }


@torch.no_grad()
def sink_numbers(model: Transformer, task: Triggers) -> dict[str, Any]:
    """α₁ over heads and inputs, the largest activation, and how often copies are right.

    Of α₁ there are its mean, the share above ε, and the largest head's.
    """
    inputs, targets = task._held.inputs, task._held.targets
    # (B, heads of all layers)
    alpha = torch.cat([A[..., 0].mean(2) for A in model.patterns(inputs)], 1)
    x, largest = model.embed(inputs), 0.0
    for block in model.blocks:
        x = block(x)
        largest = max(largest, float(x.abs().max()))
    right = model(inputs).argmax(2) == targets
    return {
        "sink strength": float(alpha.mean()),
        "sink rate": float((alpha > EPSILON).double().mean()),
        "strongest head": float(alpha.mean(0).max()),
        "largest activation": largest,
        "copies right": float(right[task.copied(inputs)].double().mean()),
    }
