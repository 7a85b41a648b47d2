"""The smallest case: tokens that forget slowly, one query-key matrix with a chosen spectrum.

Descent on the penalty alone is measured too.

Tokens are an AR(1) sequence `x_t = ρ x_{t−1} + √(1 − ρ²) ε_t` in d dimensions. The last token looks
back at those before it by `softmax(x_Tᵀ W x_t)`, W symmetric with a given trace and variance of its
eigenvalues.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...attention.qk import localisation_penalty


def autoregressive(number: int, tokens: int, d: int, rho: float, seed: int) -> Tensor:
    """(B, T, d) with unit variance in every coordinate at every place."""
    x = torch.randn(
        number, tokens, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    for t in range(1, tokens):
        x[:, t] = rho * x[:, t - 1] + math.sqrt(1 - rho * rho) * x[:, t]
    return x


def symmetric(d: int, trace: float, variance: float, seed: int) -> Tensor:
    """A symmetric matrix (d, d) whose eigenvalues have the given mean and variance.

    The mean is `trace/d`; both are exact, and the directions are random.
    """
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(d, generator=draw, dtype=torch.float64)
    values = trace / d + math.sqrt(variance) * (z - z.mean()) / z.std(correction=0)
    U = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q
    return (U * values) @ U.T


def looking_back(x: Tensor, W: Tensor) -> Tensor:
    """A (B, T − 1): how the last token weighs those before it."""
    return torch.einsum("bd,de,bte->bt", x[:, -1], W, x[:, :-1]).softmax(1)


def toy_row(
    trace: float, variance: float, number: int, seed: int, d: int = 64, tokens: int = 32
) -> dict[str, Any]:
    """How far attention looks back, how evenly, and how often a position matters.

    The mean distance looked back, the entropy of the mean profile over ln(T − 1), and `ρ_t = P(A_t
    > 1/T)` near and far.
    """
    A = looking_back(
        autoregressive(number, tokens, d, 0.9, seed), symmetric(d, trace, variance, seed + 1)
    )
    profile, distance = A.mean(0), torch.arange(tokens - 1, 0, -1, dtype=A.dtype)
    above = A.gt(1 / tokens).double().mean(0)
    return {
        "trace": trace,
        "variance": variance,
        "seed": seed,
        "distance": float(profile @ distance),
        "entropy": float(torch.special.entr(profile).sum()) / math.log(tokens - 1),
        "rho near": float(above[-3:].mean()),
        "rho far": float(above[:-3].mean()),
    }


def descend(d: int, steps: int, rate: float, seed: int) -> dict[str, Any]:
    """Plain descent on the penalty of a random W (d, d).

    Returns how far its trace and its penalty go, and the gradient's trace.
    """
    torch.manual_seed(seed)
    W, eye = torch.randn(d, d).requires_grad_(), torch.eye(d)
    begin, first, largest = (
        float(W.detach().trace()),
        float(localisation_penalty(W.detach(), eye)),
        0.0,
    )
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(localisation_penalty(W, eye), W)
        largest = max(largest, abs(float(gradient.trace())) / float(gradient.norm()))
        with torch.no_grad():
            W -= rate * gradient
    return {
        "seed": seed,
        "trace": begin,
        "drift": abs(float(W.detach().trace()) - begin),
        "gradient's trace": largest,
        "penalty left": float(localisation_penalty(W.detach(), eye)) / first,
    }
