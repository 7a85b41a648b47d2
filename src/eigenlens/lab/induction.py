"""A two-layer transformer that learns induction heads (arXiv 2409.10559).

It is small enough to follow every one of its parameters.

Layer 1 has H heads that know positions only: head h gives `v_h(l) = Σ_j softmax_j(W_h) x_{l−j}`,
normalised, j = 1 … M. The MLP behind it, with its norm, is a kernel over sets S of heads, `|S| ≤
2`, the empty one (which is 1 everywhere) among them:

    k(q, l) = Σ_S p_S Π_{h∈S} ⟨v_h(q), v_h(l)⟩,     p_S = c_S² / Σ c²

Layer 2 is one head, `o = Σ_l softmax_l(a · k(L+1, l)) x_l` over the places l > M, whose contexts
are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import EigenlensError
from .markov import Drawn

Loss = Literal["output as logits", "log of the output"]


@dataclass(frozen=True)
class Start:
    """The parameters to begin with.

    `H` heads over `window` offsets, W with `diagonal` and `rest`, c and a.
    """

    heads: int = 3
    window: int = 3
    diagonal: float = 3.0
    rest: float = 0.1
    c: float = 0.01
    a: float = 0.01
    largest: int = 2  # heads in a set
    empty: bool = True  # the empty set among them

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= self.window:
            raise EigenlensError(
                f"{self.heads} heads do not fit a window of {self.window}: each starts at an offset"
                " of its own"
            )
        if not 1 <= self.largest <= self.heads:
            raise EigenlensError(
                f"sets of up to {self.largest} of {self.heads} heads cannot be made;"
                " take at least 1, at most all"
            )
        if self.c == 0:
            raise EigenlensError("c of 0 has no gradient; start above it")


START = Start()


class InductionModel(nn.Module):
    """The model, by its definition, place by place; `model.of_counts` gives the same from counts.

    >>> model = InductionModel(states=3)
    >>> # (8, 3): weights of the next token, which sum to 1
    >>> model(torch.randint(3, (8, 100))).shape
    """

    def __init__(self, states: int = 3, start: Start = START) -> None:
        super().__init__()
        self.states, self.window, H = states, start.window, start.heads
        least = 0 if start.empty else 1
        self.sets = [
            S for size in range(least, start.largest + 1) for S in combinations(range(H), size)
        ]
        W = torch.full((H, start.window), start.rest, dtype=torch.float64).fill_diagonal_(
            start.diagonal
        )
        self.W = nn.Parameter(W)
        self.c = nn.Parameter(torch.full((len(self.sets),), start.c, dtype=torch.float64))
        self.a = nn.Parameter(torch.tensor(start.a, dtype=torch.float64))

    @property
    def p(self) -> Tensor:
        """The share of every set, (sets,)."""
        return self.c.square() / self.c.square().sum()

    @property
    def copies(self) -> Tensor:
        """The weight of each head on the offset it starts at, (H,): 1 is a perfect copier."""
        return self.W.softmax(1).diagonal()

    def share(self, parents: Sequence[int]) -> Tensor:
        """`p_S` of the set of heads that start at these offsets."""
        S = tuple(sorted(parent - 1 for parent in parents))
        if S not in self.sets:
            raise EigenlensError(
                f"no set of heads looks at the offsets {tuple(parents)}; there are {self.sets},"
                " from 0"
            )
        return self.p[self.sets.index(S)]

    def read(self, lags: Tensor) -> Tensor:
        """What layer 1 makes of the M tokens before a place, the nearest first.

        (…, M, d) one-hot → (…, H, d).
        """
        return F.normalize(self.W.softmax(1) @ lags, dim=-1)

    def kernel(self, alike: Tensor) -> Tensor:
        """`k` from the products `⟨v_h, v_h⟩` of every head: (H, …) → (…)."""
        one = alike.new_ones(())
        terms = (
            share * reduce(torch.mul, (alike[h] for h in S), one)
            for share, S in zip(self.p, self.sets)
        )
        return sum(terms, torch.zeros_like(alike[0]))

    def forward(self, tokens: Tensor) -> Tensor:
        """Weights of the token that follows: (B, L) → (B, d)."""
        x = F.one_hot(tokens, self.states).to(self.W.dtype)  # (B, L, d)
        L, M = tokens.shape[1], self.window
        # (B, L+1−M, M, d)
        lags = torch.stack([x[:, M - j : L + 1 - j] for j in range(1, M + 1)], 2)
        v = self.read(lags)  # (B, L+1−M, H, d), the last of it the query's
        k = self.kernel(torch.einsum("bhd,blhd->hbl", v[:, -1], v[:, :-1]))  # (B, L−M)
        return (torch.softmax(self.a * k, 1)[:, None] @ x[:, M:])[:, 0]

    def of_counts(self, counts: Tensor, last: Tensor) -> Tensor:
        """The same of `Drawn.counts`.

        Places of one context are alike, so that contexts are compared once for all sequences.
        """
        # (contexts, M)
        past = torch.tensor(
            list(product(range(self.states), repeat=self.window)), device=counts.device
        )
        v = self.read(F.one_hot(past, self.states).to(self.W.dtype))  # (contexts, H, d)
        k = self.kernel(torch.einsum("qhd,chd->hqc", v, v))  # (contexts, contexts)
        weights = torch.exp(self.a * k - (self.a * k).amax(1, keepdim=True))[last]  # (N, contexts)
        mass = (weights[:, None] @ counts)[:, 0]  # (N, d)
        return mass / mass.sum(1, keepdim=True)


def loss_of(o: Tensor, target: Tensor, loss: Loss, epsilon: float = 1e-6) -> Tensor:
    """The mean loss of outputs (N, d): `−log softmax(o)_target`, or `−log(o_target + ε)`."""
    if loss == "output as logits":
        return F.cross_entropy(o, target)
    return -(o.gather(1, target[:, None]) + epsilon).log().mean()


def train_induction(
    drawn: Drawn,
    start: Start = START,
    *,
    epochs: int = 300,
    rate: float = 1.0,
    loss: Loss = "output as logits",
    epsilon: float = 1e-6,
    only: Sequence[str] = ("W", "c", "a"),
    model: InductionModel | None = None,
) -> tuple[InductionModel, list[dict[str, Any]]]:
    """Plain gradient descent on all sequences at once: an epoch is one step.

    Returns the model and one row per epoch, from 0.

    A row has `p` of the true parents, `a`, `copies` (mean weight of their heads on their offset),
    `loss`, and `off`: how far the output is from the true kernel (mean total variation). `only`
    names what learns; `model` is one to go on with.
    """
    model = model or InductionModel(drawn.source.states, start)
    learns = [getattr(model, name) for name in only]
    counts, last = drawn.counts(model.window)
    heads = [parent - 1 for parent in drawn.source.parents] or list(range(len(model.W)))
    rows = []
    for epoch in range(epochs + 1):
        o = model.of_counts(counts, last)
        value = loss_of(o, drawn.target, loss, epsilon)
        with torch.no_grad():
            rows.append(
                {
                    "epoch": epoch,
                    "p": float(model.share(drawn.source.parents)),
                    "a": float(model.a),
                    "copies": float(model.copies[heads].mean()),
                    "loss": float(value),
                    "off": float((o - drawn.truth).abs().sum(1).mean() / 2),
                }
            )
        if epoch < epochs:
            for x, gradient in zip(learns, torch.autograd.grad(value, learns)):
                x.data.sub_(rate * gradient)
    return model, rows


def half_way_epoch(rows: Sequence[dict[str, Any]], name: str) -> int:
    """The first epoch at which a number has made half of its change over the run."""
    first, last = rows[0][name], rows[-1][name]
    return next(
        int(row["epoch"]) for row in rows if abs(row[name] - first) >= abs(last - first) / 2
    )
