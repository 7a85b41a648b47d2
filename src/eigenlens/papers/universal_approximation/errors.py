"""Errors of the construction: ramps, functions, the sorting of two numbers, maps of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...attention.ramps import HARD, Ramp, SequenceMap, fit_network, network

if TYPE_CHECKING:
    from . import Scale

TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "sorted": lambda x: x.sort(1).values,
    "sine × mean": lambda x: torch.sin(3 * x) * x.mean(1, keepdim=True),
}
"""Continuous maps of sequences (B, T, 1) to themselves; neither is a network with one hidden layer.
"""


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sin 5y": lambda y: torch.sin(5 * y),
    "|y|": torch.abs,
    "relu": torch.relu,
}


def ramp_errors(anchors: Sequence[int], heads: Sequence[int], places: int) -> list[dict[str, Any]]:
    """The largest error of `clamp(y, −1, 1)` over y in [−1, 1].

    Hard and at β = 2/Δ, and within two anchors of the ends.
    """
    y = torch.linspace(-1, 1, places, dtype=torch.float64)
    rows = []
    for p in anchors:
        for H in heads:
            hard, soft = (
                (Ramp(-1, 1, p, beta, torch.ones(1, dtype=y.dtype), heads=H)(y[:, None]) - y).abs()
                for beta in (HARD, None)
            )
            spacing = 2 / (H * (p - 1))
            inner = y.abs() < 1 - 2 * spacing
            rows.append(
                {
                    "p": p,
                    "H": H,
                    "intervals": p - 1,
                    "hard": float(hard.max()),
                    "half a spacing": spacing / 2,
                    "soft": float(soft.max()),
                    "soft, inside": float(soft[inner].max()) if bool(inner.any()) else None,
                }
            )
    return rows


def function_errors(anchors: Sequence[int], places: int) -> list[dict[str, Any]]:
    """The same with values f(L_k): the largest error of f on [−1, 1]."""
    y = torch.linspace(-1, 1, places, dtype=torch.float64)
    return [
        {
            "function": name,
            "intervals": p - 1,
            "error": float((_ramp(p, f)(y[:, None]) - f(y)).abs().max()),
        }
        for name, f in FUNCTIONS.items()
        for p in anchors
    ]


def _ramp(p: int, f: Callable[[Tensor], Tensor]) -> Ramp:
    return Ramp(-1, 1, p, HARD, torch.ones(1, dtype=torch.float64), values=f)


def sorter() -> tuple[Tensor, Tensor, Tensor]:
    """Two numbers of [−1, 1] in order, as ReLU units.

    `min = x₁ − relu(x₁ − x₂)`, `max = x₂ + relu(x₁ − x₂)`.
    """
    # (4, 2, 1)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)[
        ..., None
    ]
    shift = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)  # relu(x + 1) − 1 is x itself
    # (2, 1, 4)
    outer = torch.tensor([[1.0, 0.0, -1.0, -1.0], [0.0, 1.0, 1.0, -1.0]], dtype=torch.float64)[
        :, None
    ]
    return weight, shift, outer


def sort_errors(anchors: Sequence[int], number: int, seed: int) -> list[dict[str, Any]]:
    """Two layers of attention that sort two numbers.

    Largest error over random pairs beside the bound.
    """
    x = _uniform(number, 2, seed)
    rows = []
    for p in anchors:
        hard, soft = SequenceMap(*sorter(), p=p, beta=HARD), SequenceMap(*sorter(), p=p)
        target = x.sort(1).values
        rows.append(
            {
                "p": p,
                "intervals": p - 1,
                "hard": float((hard(x) - target).abs().max()),
                "bound": float(hard.bound().max()),
                "soft": float((soft(x) - target).abs().max()),
            }
        )
    return rows


def sequence_map(scale: Scale, target: str, units: int, seed: int) -> dict[str, Any]:
    """A continuous map by way of a network of random ReLU units.

    Returns the network's error, and that of attention built from it.
    """
    f = TARGETS[target]
    x, fresh = (
        _uniform(scale.samples, scale.tokens, seed),
        _uniform(scale.held_out, scale.tokens, seed + 1_000_003),
    )
    made = fit_network(x, f(x), units, seed, scale.pool)
    attention = SequenceMap(*made, p=scale.unit_anchors)
    through = torch.cat([attention(part) for part in fresh.split(100)])
    wanted = f(fresh)
    spread = float((wanted - f(x).mean(0)).square().mean().sqrt())
    return {
        "target": target,
        "units": units,
        "seed": seed,
        "network": float((network(*made, fresh) - wanted).square().mean().sqrt()) / spread,
        "attention": float((through - wanted).square().mean().sqrt()) / spread,
        "largest": float((through - wanted).abs().max()) / spread,
        "attention and softmax": float(
            (attention.as_softmax(fresh[:25]) - through[:25]).abs().max()
        ),
    }


def _uniform(number: int, tokens: int, seed: int) -> Tensor:
    """Sequences (number, tokens, 1) of numbers in [−1, 1]."""
    return (
        2
        * torch.rand(
            number, tokens, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        - 1
    )
