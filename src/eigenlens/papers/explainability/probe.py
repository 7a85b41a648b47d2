"""A linear classifier on the frozen features of a backbone.

A model with a class to explain where no fine-tuned one is at hand.

features f(x) = mean of the last states over tokens that are no padding, or the state of the first
(class) token logits        = f W + b,  with W, b the minimum of  mean cross-entropy + λ/2 ‖W‖²
over standardised features
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.load import Model, load
from .labelled import Labelled

Pool = Literal["mean", "first"]
STRENGTHS = (0.01, 0.1, 1.0)


class Answer(NamedTuple):
    """What the probe gives: logits (B, classes)."""

    logits: Tensor


class Probe(nn.Module):
    """A backbone and a linear read-out of its pooled last states, called like the backbone."""

    def __init__(self, backbone: nn.Module, names: Sequence[str], pool: Pool) -> None:
        super().__init__()
        self.backbone, self.pool = backbone, pool
        given: Any = backbone.config
        self.config = copy.deepcopy(given)  # the labels are the probe's, not the backbone's
        self.config.id2label = dict(enumerate(names))
        self.config.label2id = {name: label for label, name in enumerate(names)}
        like = next(backbone.parameters())
        self.readout = nn.Linear(
            self.config.hidden_size, len(names), device=like.device, dtype=like.dtype
        )

    def forward(self, **batch: Any) -> Answer:
        return Answer(self.readout(self.features(**batch)))

    def features(self, **batch: Any) -> Tensor:
        """(B, C)."""
        states = self.backbone(**batch).last_hidden_state  # (B, T, C)
        if self.pool == "first":
            return states[:, 0]
        mask = batch.get("attention_mask")
        weight = states.new_ones(states.shape[:2]) if mask is None else mask.to(states.dtype)
        weight = weight[..., None]  # (B, T, 1)
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1)


def regression(
    features: Tensor, labels: Tensor, classes: int, strength: float = 1e-2
) -> tuple[Tensor, Tensor]:
    """Logistic regression by L-BFGS in float64.

    Returns W (C, classes) and b (classes) for the features (N, C) as they are.

    The penalty `strength`/2 ‖W‖² is on features over their standard deviation; the scale goes back
    into W.
    """
    x = features.detach().double()
    middle, spread = x.mean(0), x.std(0, correction=0).clamp(min=1e-12)
    x = (x - middle) / spread
    W = x.new_zeros(x.shape[1], classes, requires_grad=True)
    b = x.new_zeros(classes, requires_grad=True)
    solver = torch.optim.LBFGS(
        [W, b],
        max_iter=500,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(x @ W + b, labels) + strength / 2 * W.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(loss)
    W, b = W.detach(), b.detach()
    W = W / spread[:, None]
    return W, b - middle @ W


def strength_of(features: Tensor, labels: Tensor, classes: int) -> float:
    """The λ of `STRENGTHS` with the least loss on a held-out quarter of the inputs."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(
        labels.device
    )
    cut = 3 * len(labels) // 4
    learn, ask = order[:cut], order[cut:]
    losses = []
    for strength in STRENGTHS:
        W, b = regression(features[learn], labels[learn], classes, strength)
        losses.append(float(F.cross_entropy(features[ask].double() @ W + b, labels[ask])))
    return STRENGTHS[losses.index(min(losses))]


def probe_of(model: Model, learn: Labelled, names: Sequence[str], pool: Pool) -> Model:
    """The model with a linear classifier of `names` behind it, learned from labelled inputs.

    Its own weights stay frozen.
    """
    probe = Probe(model.backbone, names, pool).eval()
    features = _features(probe, learn.parts(64))
    W, b = regression(
        features, learn.labels, len(names), strength_of(features, learn.labels, len(names))
    )
    with torch.no_grad():
        probe.readout.weight.copy_(W.T)
        probe.readout.bias.copy_(b)
    made = load(probe, device=None, tokenizer=model.tokenizer)
    facts = replace(made.facts, name=f"{model.name} + probe")
    return replace(made, facts=facts, processor=model.processor)


@torch.no_grad()
def _features(probe: Probe, parts: Iterable[Labelled]) -> Tensor:
    return torch.cat([probe.features(**part.batch) for part in parts])


@torch.no_grad()
def probe_logits(model: Model, asked: Labelled, size: int = 64) -> Tensor:
    """(N, classes)."""
    return torch.cat([model.module(**part.batch).logits for part in asked.parts(size)])


def share_right(right: int, number: int) -> tuple[float, float, float]:
    """A share with its 95 % interval by Wilson's formula, which stays within 0 … 1.

    >>> [round(x, 3) for x in share_right(8, 10)]
    [0.8, 0.49, 0.943]
    """
    z = 1.959964
    p, n = right / number, number
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return p, middle - half, middle + half
