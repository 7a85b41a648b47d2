"""What a state of one matrix holds of N pairs, and what attention holds.

Nothing is trained: the state is the best there is.

A layer of linear attention keeps of N pairs (k_i, v_i) a matrix S, whatever its rule of writing.
The best one for reading every value back by its key is the one of least squares, `min_S Σ_i |v_i −
S k_i|²`. For Gaussian pairs it leaves

    Σ_i |v_i − S k_i|² / Σ_i |v_i|² = 1 − d_k/N

while attention leaves nothing, however many pairs: a softmax hot enough picks the one key that was
asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...attention import make
from ...attention.delta_rule import chunked

HOT = 1e4
"""The scale of the scores.

Keys of length one whose product with the one asked for is .99 then get a weight of e⁻¹⁰⁰.
"""
STATES = ("best state", "delta rule", "sum of pairs")


def codes(N: int) -> Tensor:
    """The values 0 … N−1 as log₂N bits of ±1, (N, log₂N).

    >>> codes(4)
    tensor([[-1., -1.],
            [ 1., -1.],
            [-1.,  1.],
            [ 1.,  1.]], dtype=torch.float64)
    """
    bits = (N - 1).bit_length()
    return 2.0 * ((torch.arange(N)[:, None] >> torch.arange(bits)) & 1).double() - 1


def decode(z: Tensor, N: int) -> Tensor:
    """The value whose code is nearest to z (…, log₂N): (…)."""
    return (z @ codes(N).to(z.dtype).T).argmax(-1)


def best_state(k: Tensor, v: Tensor) -> Tensor:
    """`Sᵀ (D, E)` of least squares for keys (N, D) and values (N, E)."""
    return torch.linalg.lstsq(k, v, driver="gelsd").solution


def read_back(k: Tensor, v: Tensor, rule: str) -> Tensor:
    """What the state of a rule gives for every key (N, D): (N, E).

    It is read after all pairs were written once, in order.

    Keys have length one. The delta rule writes at full strength; the sum of pairs is linear
    attention without a norm.
    """
    if rule == "best state":
        return k @ best_state(k, v)
    asked = torch.cat([k, k])[None, None]  # (1, 1, 2N, D): written first, read behind
    values = torch.cat([v, torch.zeros_like(v)])[None, None]
    strength = torch.cat([torch.ones(len(k)), torch.zeros(len(k))]).to(k)[None, None]
    return chunked(asked, asked, values, None, strength, erase=rule == "delta rule")[0, 0, len(k) :]


def capacity(
    width: int, numbers: Sequence[int], values: int, seeds: int, seed: int
) -> list[dict[str, Any]]:
    """The share of Gaussian values left unexplained, by number of pairs.

    It is measured for states of `width` d_k, and for hot softmax.
    """
    rows = []
    full = make("softmax")
    for N in numbers:
        found: dict[str, list[float]] = {name: [] for name in (*STATES, "softmax")}
        for trial in range(seeds):
            generator = torch.Generator().manual_seed((seed << 32) + 1000 * trial + N)
            k = torch.randn(N, width, generator=generator, dtype=torch.float64)
            v = torch.randn(N, values, generator=generator, dtype=torch.float64)
            k = k / k.norm(dim=1, keepdim=True)
            read = {name: read_back(k, v, name) for name in STATES}
            read["softmax"] = full(*(t[None, None] for t in (k, k, v)), scale=HOT)[0, 0]
            for name, z in read.items():
                found[name].append(float((v - z).square().sum() / v.square().sum()))
        for name, left in found.items():
            rows.append(
                {
                    "mechanism": name,
                    "width": width,
                    "pairs": N,
                    "left": sum(left) / seeds,
                    "low": min(left),
                    "high": max(left),
                    "theory": (
                        0.0
                        if name == "softmax"
                        else max(0.0, 1 - width / N)
                        if name == "best state"
                        else None
                    ),
                }
            )
    return rows
