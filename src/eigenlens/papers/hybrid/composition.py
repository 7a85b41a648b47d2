"""Function composition by L + 1 layers of full attention, their weights written down.

Linear states can take the place of some of them.

The input is the tables of L random functions of N values, two tokens per entry, in random order:
"function l of x", "is y". Behind them stand the queries, one token for every value (no query looks
at another). The first layer lets every "is y" look at the token before it and take over l and x.
Each of the L others looks up one function: a query that holds z attends to the entry (l, z) and
takes over its y. There are no MLPs and no norms; scores are so hot that a softmax picks one token
exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...attention import make
from .state import best_state, codes, decode

SHARP = 100.0
"""The scale of the scores.

A right token leads by two or more, so that any other gets a weight of at most e⁻²⁰⁰.
"""


@dataclass(frozen=True)
class ComposedLayer:
    """`x ← x + softmax(s (x W_Q + b)(x W_K)ᵀ) x W_V W_O` of one head, causal."""

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    b: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        # (B, 1, n, …)
        q, k, v = (t[:, None] for t in (x @ self.W_Q + self.b, x @ self.W_K, x @ self.W_V))
        return x + make("softmax")(q, k, v, causal=True, scale=SHARP)[:, 0] @ self.W_O


class StreamLayout:
    """Which numbers of the stream hold what.

    `here` and `before` are codes of a token's place and of the one before it, `l`, `x`, `y` what it
    says, `of l`, `of x` what the first layer adds to "is y", and `z0` … `zL` a query's values.
    """

    def __init__(self, L: int, N: int) -> None:
        bits, places = (N - 1).bit_length(), (2 * L * N + N).bit_length()
        sizes = {
            "here": places,
            "before": places,
            "l": L,
            "x": bits,
            "y": bits,
            "of l": L,
            "of x": bits,
        }
        sizes |= {f"z{l}": bits for l in range(L + 1)}
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.at = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends)}
        self.width, self.places = ends[-1], places

    def pick(self, *names: str) -> Tensor:
        """The matrix (C, d) that takes these parts out of the stream, one behind the other."""
        return torch.cat([torch.eye(self.width)[:, self.at[name]] for name in names], 1)


def layers(L: int, N: int) -> list[ComposedLayer]:
    """The L + 1 layers."""
    stream = StreamLayout(L, N)
    none = torch.zeros(stream.places)
    found = [
        ComposedLayer(
            stream.pick("before"),
            stream.pick("here"),
            stream.pick("l", "x"),
            stream.pick("of l", "of x").T,
            none,
        )
    ]  # every token takes over l and x of the one before it
    for l in range(L):
        W_Q, W_K = stream.pick("of l", f"z{l}"), stream.pick("of l", "of x")
        W_Q[:, :L] = 0.0  # what it asks of l does not depend on the stream:
        b = torch.zeros(W_Q.shape[1])
        b[l] = 2.0  # as much as one bit of x
        found.append(ComposedLayer(W_Q, W_K, stream.pick("y"), stream.pick(f"z{l + 1}").T, b))
    return found


def write_stream(tables: Tensor, generator: torch.Generator) -> Tensor:
    """The stream (B, 1 + 2LN + N, C) of tables (B, L, N) of values.

    An empty token, the entries, the queries.
    """
    B, L, N = tables.shape
    stream, n = StreamLayout(L, N), 1 + 2 * L * N + N
    x, code = torch.zeros(B, n, stream.width), codes(N).float()
    place = (torch.arange(-1, n)[:, None] >> torch.arange(stream.places)) & 1  # (n + 1, places)
    x[:, :, stream.at["before"]], x[:, :, stream.at["here"]] = (
        2.0 * place[:-1] - 1,
        2.0 * place[1:] - 1,
    )
    order = torch.rand(B, L * N, generator=generator).argsort(1)  # which entry stands where
    x[:, 1 : 1 + 2 * L * N : 2, stream.at["l"]] = torch.eye(L)[order // N]
    x[:, 1 : 1 + 2 * L * N : 2, stream.at["x"]] = code[order % N]
    x[:, 2 : 2 + 2 * L * N : 2, stream.at["y"]] = code[tables.flatten(1).gather(1, order)]
    x[:, 1 + 2 * L * N :, stream.at["z0"]] = code
    return x


def answers(tables: Tensor, full: int, generator: torch.Generator) -> Tensor:
    """`f_L(… f_1(q))` for every q, (B, N), as read from the last layer.

    The first `full` look-ups are by attention.

    The others are by a linear state each: for every table the best one there can be (least squares
    on that very table), and the value nearest to what it gives goes on to the next.
    """
    B, L, N = tables.shape
    stream, (join, *hops) = StreamLayout(L, N), layers(L, N)
    x = write_stream(tables, generator)
    if full:
        x = join(x)
        for hop in hops[:full]:
            x = hop(x)
    z = x[:, -N:, stream.at[f"z{full}"]]  # (B, N, bits)
    code = codes(N)
    for l in range(full, L):
        # (B, bits, bits)
        states = torch.stack([best_state(code, code[table]) for table in tables[:, l]])
        z = code[decode(z.double(), N)] @ states
    return decode(z.double(), N)


def compositions(
    numbers: Sequence[int], steps: int, inputs: int, seeds: int, seed: int
) -> list[dict[str, Any]]:
    """The share of right answers by number of values, functions and full look-ups, over seeds."""
    rows = []
    for N in numbers:
        for L in range(1, steps + 1):
            for full in range(L + 1):
                right = [
                    _right(N, L, full, _inputs(N, full, inputs), (seed << 32) + 1000 * s + N)
                    for s in range(seeds)
                ]
                rows.append(
                    {
                        "values": N,
                        "functions": L,
                        "full": full,
                        "linear": L - full,
                        "accuracy": sum(right) / seeds,
                        "low": min(right),
                        "high": max(right),
                        "chance": 1 / N,
                    }
                )
    return rows


def _inputs(N: int, full: int, inputs: int) -> int:
    """How many inputs to average over.

    States are solved in no time, so their mean is taken over more inputs; attention is exact for
    each.
    """
    return max(2, inputs * 8 // N) if full else max(2, inputs * 64 // N)


@torch.no_grad()
def _right(N: int, L: int, full: int, inputs: int, seed: int) -> float:
    """All inputs of a seed, few at a time: the longest have thousands of tokens."""
    generator = torch.Generator().manual_seed(seed)
    right = 0.0
    for _ in range(inputs):
        tables = torch.randint(N, (1, L, N), generator=generator)
        true = torch.arange(N)[None]
        for l in range(L):
            true = tables[:, l].gather(1, true)
        right += float((answers(tables, full, generator) == true).double().mean())
    return right / inputs
