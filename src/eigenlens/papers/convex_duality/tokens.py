"""Tokens of pictures.

Measured are how a solved block groups them, and how well it tells the classes of pictures that it
has not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...data import datasets
from ...extras import needs
from ...lab.convex import (
    ConvexBlock,
    FourierOperator,
    LinearAttention,
    LinearMixer,
    Logistic,
    Problem,
    Solution,
    k_means,
    nearest,
    purity,
    solve,
    token_clusters,
)
from ...models.load import load
from ..inputs import CLOTHING

if TYPE_CHECKING:
    from . import Scale

CLASSES = 10
GROUPINGS = 5
"""Seeds of k-means: what depends on its start is averaged."""
STEPS = 5000
HEADS: dict[str, Callable[[Tensor], ConvexBlock]] = {
    "linear attention": lambda X: LinearAttention(X, CLASSES),
    "linear mixer": lambda X: LinearMixer(X, CLASSES),
    "Fourier operator": lambda X: FourierOperator(X, CLASSES),
    # one token: circ(X) is X itself
    "linear head": lambda X: FourierOperator(X.mean(1, keepdim=True), CLASSES),
}


class PictureTokens:
    """The model's last patch tokens of the pictures, made when they are first asked for."""

    def __init__(self, scale: Scale, seed: int) -> None:
        self.scale, self.seed = scale, seed

    @cached_property
    def made(self) -> tuple[list[np.ndarray], Tensor, Tensor]:
        """Pictures, hidden (N, s, D), classes (N,), of all draws."""
        needs("PIL", what="reading pictures")
        from PIL import Image

        scale = self.scale
        number = sum(scale.images) * scale.draws
        first = self.seed * number % 50_000
        chosen = list(islice(datasets.images(scale.data), first, first + number))
        model = load(scale.model)
        mean, spread = (
            torch.tensor(v)[:, None, None]
            for v in (model.processor.image_mean, model.processor.image_std)
        )
        pixels = []
        for picture, _ in chosen:
            large = (
                Image.fromarray(picture)
                .convert("RGB")
                .resize((scale.side, scale.side), Image.Resampling.BICUBIC)
            )
            pixels.append(
                (torch.from_numpy(np.asarray(large, np.float32) / 255).permute(2, 0, 1) - mean)
                / spread
            )
        with torch.no_grad():
            hidden = [
                # without the class token
                model.backbone(pixel_values=part.to(model.device)).last_hidden_state[:, 1:].cpu()
                for part in torch.stack(pixels).split(50)
            ]
        return (
            [picture for picture, _ in chosen],
            torch.cat(hidden).double(),
            torch.tensor([int(c) for _, c in chosen]),
        )

    def draw(self, number: int) -> tuple[list[list[np.ndarray]], list[Tensor], list[Tensor], float]:
        """Pictures, tokens (n, s, d) and classes to fit, to choose by and to judge by.

        The last value is the share of variance that d keeps.

        Principal components and scale are those of the tokens to fit.
        """
        pictures, hidden, classes = self.made
        total = sum(self.scale.images)
        here = slice(number * total, (number + 1) * total)
        fit = hidden[here][: self.scale.images[0]].flatten(0, 1)
        values, vectors = torch.linalg.eigh(torch.cov(fit.T))
        X = (hidden[here] - fit.mean(0)) @ vectors[:, -self.scale.features :].flip(1)
        # a token's mean squared norm is 1
        X = X / X[: self.scale.images[0]].square().sum(2).mean().sqrt()
        ends = np.cumsum(self.scale.images)[:-1].tolist()
        bounds = [0, *ends, total]
        split = [pictures[here][a:b] for a, b in zip(bounds, bounds[1:])]
        sizes = list(self.scale.images)
        kept = float(values[-self.scale.features :].sum() / values.sum())
        return split, list(X.split(sizes)), list(classes[here].split(sizes)), kept


def token_run(tokens: PictureTokens, scale: Scale, number: int) -> dict[str, Any]:
    """One draw of pictures: held-out accuracy of every kind of head, and clusters of tokens."""
    pictures, X, y, kept = tokens.draw(number)
    accuracy, chosen = [], {}
    for name, make in HEADS.items():
        path = _path(make, X[0], y[0], scale)
        best = max(path, key=lambda one: (_right(make, X[1], y[1], one[1]), one[0]))
        chosen[name] = best
        accuracy.append(
            {
                "draw": number,
                "head": name,
                "β / β_max": best[0],
                "heads": best[1].rank,
                "gap": best[1].gap,
                "steps": best[1].steps,
                "fitted": _right(make, X[0], y[0], best[1]),
                "held out": _right(make, X[2], y[2], best[1]),
                "variance kept": kept,
            }
        )
    fraction, solution = chosen["linear attention"]
    shuffled = y[0][torch.randperm(len(y[0]), generator=torch.Generator().manual_seed(number))]
    control = _path(HEADS["linear attention"], X[0], shuffled, scale, until=fraction)[-1][1]
    block = LinearAttention(X[0], CLASSES)
    each = y[2][:, None].expand(X[2].shape[:2]).flatten()
    found: dict[str, list[float]] = {
        "learned rows": [],
        "rows, labels shuffled": [],
        "features": [],
        "at random": [],
    }
    for start in range(GROUPINGS):
        found["learned rows"].append(purity(_labels(block, solution, X[2], start).flatten(), each))
        found["rows, labels shuffled"].append(
            purity(_labels(block, control, X[2], start).flatten(), each)
        )
        centres = k_means(X[0].flatten(0, 1), CLASSES, start)
        found["features"].append(purity(nearest(X[2].flatten(0, 1), centres), each))
        source = torch.Generator().manual_seed(start)
        found["at random"].append(
            purity(torch.randint(CLASSES, each.shape, generator=source), each)
        )
    rows = [
        {
            "draw": number,
            "grouped by": name,
            "purity": float(np.mean(some)),
            "low": min(some),
            "high": max(some),
        }
        for name, some in found.items()
    ]
    clusters = token_clusters(block, solution.Z, CLASSES)
    labels = clusters.assign(X[2])
    first = [int((y[2] == c).nonzero()[0]) for c in range(CLASSES) if bool((y[2] == c).any())]
    shown = [
        {
            "class": CLOTHING[int(y[2][i])],
            "pixels": pictures[2][i].tolist(),
            "clusters": labels[i].tolist(),
        }
        for i in first[:8]
    ]
    return {"accuracy": accuracy, "clusters": rows, "flow": clusters.rows(), "shown": shown}


def _labels(block: LinearAttention, solution: Solution, X: Tensor, start: int) -> Tensor:
    return token_clusters(block, solution.Z, CLASSES, start).assign(X)


def _path(
    make: Callable[[Tensor], ConvexBlock],
    X: Tensor,
    y: Tensor,
    scale: Scale,
    until: float = 0.0,
) -> list[tuple[float, Solution]]:
    """The optimum at each β, from the largest down to `until`, each from the one before."""
    problem = Problem(make(X), Logistic(y[:, None], CLASSES), pooled=True)
    most, start, path = problem.beta_max(), None, []
    for fraction in scale.fractions:
        if fraction < until:
            break
        found = solve(problem, fraction * most, tolerance=scale.tolerance, most=STEPS, start=start)
        start = found.Z
        path.append((fraction, found))
    return path


def _right(
    make: Callable[[Tensor], ConvexBlock], X: Tensor, y: Tensor, solution: Solution
) -> float:
    return float((make(X).apply(solution.Z).mean(1).argmax(1) == y).double().mean())
