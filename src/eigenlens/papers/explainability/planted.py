"""A task with a known answer: one planted token decides the class, all other tokens are noise.

A model that has learned it must read the planted token, so a method that explains the model must
rank it first. Read at a class token, the answer has to come there through attention. Read as the
mean of all tokens, it need not: the planted token's own state is part of the mean, and what
attention does beside it may be of no account.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...explanations.observed import observe
from ...explanations.target import target_of
from ...lab import TaskBatch, TrainingSettings, Transformer, train
from ...lab.tasks import IGNORED
from ...lab.toys import Toy
from ...models.load import Model, load
from ...run.progress import Progress
from .deletion import RANDOM, TESTED, compare_methods, scores_of
from .labelled import Labelled

Read = Literal["class token", "mean"]
BUILDS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm_position": "post"},
    "no norm": {"norm": False},
}
"""Where the norms of the model stand."""


class Planted(Toy):
    """A class token and `length` − 1 tokens of noise, one replaced by a class's: which class?

    Tokens 0 … classes − 1 stand for the classes, the last of the vocabulary is the class token, the
    rest is noise. `places` (test,) are where the planted tokens of the test part stand.
    """

    def __init__(
        self,
        read: Read,
        classes: int = 4,
        noise: int = 27,
        length: int = 17,
        train: int = 2000,
        test: int = 200,
        seed: int = 0,
    ) -> None:
        self.classes, self.vocabulary, self.length, self.pooled = (
            classes,
            classes + noise + 1,
            length,
            read == "mean",
        )
        generator = torch.Generator().manual_seed(seed)
        number = train + test
        tokens = torch.randint(classes, classes + noise, (number, length), generator=generator)
        labels = torch.randint(classes, (number,), generator=generator)
        places = torch.randint(1, length, (number,), generator=generator)
        tokens[torch.arange(number), places] = labels
        tokens[:, 0] = classes + noise
        self.places, self.labels = places[train:], labels[train:]
        asked = labels
        if read == "class token":
            asked = torch.full((number, length), IGNORED)
            asked[:, 0] = labels
        super().__init__(
            TaskBatch(tokens[:train], asked[:train]), TaskBatch(tokens[train:], asked[train:])
        )


class AtClassToken(nn.Module):
    """What a model says at its first token, (B, T) → (B, classes)."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)[:, 0]


def planted_run(
    build: str,
    read: Read,
    *,
    layers: int,
    steps: int,
    inputs: int,
    draws: int,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Train a small model on the planted token.

    Returns how often each method ranks it first, and the deletion curves.
    """
    task, name = Planted(read, test=inputs, seed=seed), "inputs with a planted token"
    torch.manual_seed(seed)
    model = Transformer(task.config(layers=layers, width=32, heads=4, **BUILDS[build]))
    settings = TrainingSettings(steps, batch=64, rate=3e-3, measure=steps, seed=seed)
    done = train(
        model, task, settings, progress=progress, label=f"training {build}, read at the {read}"
    )
    loaded = load((model if task.pooled else AtClassToken(model)).eval())
    keep = torch.zeros_like(task.test.inputs, dtype=torch.bool)
    keep[:, 0] = True
    asked = Labelled({"inputs": task.test.inputs}, task.labels, keep)
    found = compare_methods(
        loaded, asked, draws=draws, seed=seed, size=100, progress=progress, name=name
    )
    scores = scores_of(loaded, asked, (*TESTED, RANDOM), 100, progress, name)
    top = {
        method: top_ranked(rows.masked_fill(keep, -torch.inf), task.places)
        for method, rows in scores.items()
    }
    rising = rising_share(loaded, asked, task.places, task.pooled)
    return {
        **found,
        "top": top,
        "rising": rising,
        "accuracy": done.accuracy,
        "build": build,
        "read": read,
        "seed": seed,
    }


def rising_share(model: Model, asked: Labelled, places: Tensor, pooled: bool) -> float:
    """The share of the attention to planted tokens with ∂score/∂A > 0.

    It is the attention of all tokens, or of the class token.

    Relevance counts nothing else. All layers and heads, weighted by A.
    """
    seen = observe(model, asked.batch, target_of(model, asked.batch))
    mass = above = 0.0
    for pattern in seen.patterns:
        index = places.view(-1, 1, 1, 1).expand(-1, *pattern.weights.shape[1:3], 1)
        # (N, H, T)
        A, slope = (x.gather(3, index)[..., 0] for x in (pattern.weights, pattern.gradient))
        A, slope = (A, slope) if pooled else (A[..., :1], slope[..., :1])
        mass += float(A.sum())
        above += float((A * (slope > 0)).sum())
    return above / mass


def top_ranked(scores: Tensor, places: Tensor) -> float:
    """The share of inputs whose highest score (N, T) stands at its place (N,), and nowhere else."""
    best = scores.gather(1, places[:, None])
    return float(((scores >= best).sum(1) == 1).double().mean())
