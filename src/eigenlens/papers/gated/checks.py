"""What holds of gates without any training.

It is checked on layers with random weights in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...attention.gates import mixture
from ...attention.softmax import Softmax
from ...lab import Config
from ...lab.model import Attention

WIDTH, HEADS, LARGE = 48, 3, 40.0


def random_layer(gate: str | None, seed: int, width: int = WIDTH, heads: int = HEADS) -> Attention:
    """A causal layer with weights and biases from N(0, 1/C).

    One seed gives the same weights, whatever the gate.
    """
    made = Attention(
        Config(vocabulary=2, width=width, heads=heads, layers=1, causal=True, gate=gate), Softmax()
    ).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in (made.project.weight, made.project.bias, made.out.weight, made.out.bias):
            part.copy_(
                torch.randn(part.shape, generator=generator, dtype=torch.float64) * width**-0.5
            )
        if made.gate is not None:
            shape = made.gate.weight.shape
            made.gate.weight.copy_(
                torch.randn(shape, generator=generator, dtype=torch.float64) * width**-0.5
            )
    return made


def random_stream(n: int, seed: int, width: int = WIDTH) -> Tensor:
    """A normalised stream, (2, n, C)."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.nn.functional.layer_norm(
        torch.randn(2, n, width, generator=generator, dtype=torch.float64), (width,)
    )


@torch.no_grad()
def decomposition(gate: str, n: int, seed: int) -> float:
    """Largest relative difference between a layer's output, less its bias, and all routes' sum."""
    made, x = random_layer(gate, seed), random_stream(n, seed)
    assert made.gate is not None
    _, _, v = made.queries_keys_values(x)
    routes = mixture(made.pattern(x), made.gate.values(x), v, made.w_o)  # (B, T, H, E, C)
    out = made(x) - made.out.bias
    return float((routes.sum((2, 3)) - out).abs().max() / out.abs().max())


@torch.no_grad()
def at_zero(gate: str, n: int, seed: int) -> float:
    """Largest difference between what a gate with `W_θ = 0` lets through and half the output."""
    made, plain, x = random_layer(gate, seed), random_layer(None, seed), random_stream(n, seed)
    assert made.gate is not None
    made.gate.weight.zero_()
    if made.gate_position == "G5":
        return float((made(x) - plain(x) / 2).abs().max())
    return float((made.head_outputs(x) - plain.head_outputs(x) / 2).abs().max())


@torch.no_grad()
def wide_open(gate: str, n: int, seed: int) -> float:
    """Largest relative difference from the plain output at a gate with a bias of 40."""
    made, plain, x = (
        random_layer(f"{gate}-bias={LARGE:g}", seed),
        random_layer(None, seed),
        random_stream(n, seed),
    )
    out = plain(x)
    return float((made(x) - out).abs().max() / out.abs().max())


@torch.no_grad()
def span(gate: str | None, n: int, seed: int, width: int = WIDTH, heads: int = HEADS) -> int:
    """Dimension of the span of the maps `W_V diag(g_i) W_O` of n queries i, of the first head.

    A query's output is `Σ_j A_ij x_j M_i` with its map M_i (C, C): without a gate all queries share
    one.
    """
    made, x = random_layer(gate, seed, width, heads), random_stream(n, seed, width)
    E = width // heads
    w_v = made.project.weight.split(made.sizes)[2][:E].T  # (C, E)
    g = (
        torch.ones(1, n, E, dtype=x.dtype)
        if made.gate is None
        else made.gate.values(x[:1])[:, 0].expand(1, n, E)
    )
    maps = torch.einsum("ce,te,ed->tcd", w_v, g[0], made.w_o[0]).flatten(1)  # (n, C²)
    return int(torch.linalg.matrix_rank(maps))


def exact_checks(lengths: Sequence[int], seeds: int) -> dict[str, list[dict[str, Any]]]:
    """Every check, one row per gate and seed; the spans one row per gate and length."""
    exact = []
    for seed in range(seeds):
        exact += [
            {"check": "decomposition", "gate": g, "seed": seed, "error": decomposition(g, 20, seed)}
            for g in ("G1", "G1-head", "G1-shared")
        ]
        exact += [
            {"check": "W = 0", "gate": g, "seed": seed, "error": at_zero(g, 20, seed)}
            for g in ("G1", "G1-head", "G2", "G5")
        ]
        exact += [
            {"check": "bias 40", "gate": g, "seed": seed, "error": wide_open(g, 20, seed)}
            for g in ("G1", "G1-head", "G2", "G3", "G4", "G5")
        ]
    spans = [
        {
            "gate": gate or "none",
            "queries": n,
            "head_width": WIDTH // HEADS,
            "span": span(gate, n, 0),
        }
        for gate in (None, "G1-head", "G1")
        for n in lengths
    ]
    return {"exact": exact, "spans": spans}
