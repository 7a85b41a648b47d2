"""Sequences that each follow a Markov kernel of their own.

So the next token can only be guessed from the sequence itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import EigenlensError


@dataclass(frozen=True)
class Markov:
    """`number` sequences of `length` tokens and the one that follows, over `states` tokens.

    Every sequence has a kernel of its own, `π(· | parents) ~ Dirichlet(α)`, one draw for each of
    the `states^|parents|` pasts. `parents` are the offsets of the tokens that matter, (1, 2) for
    the two before. As many tokens as the farthest parent is away start a sequence, uniformly.

    >>> drawn = Markov(number=4, length=10).draw(seed=0)
    >>> drawn.tokens.shape, drawn.truth.shape      # (4, 11), (4, 3)
    """

    number: int = 10_000
    length: int = 100
    states: int = 3
    parents: tuple[int, ...] = (1, 2)
    alpha: float = 0.1

    def __post_init__(self) -> None:
        if self.number < 1 or self.states < 2:
            raise EigenlensError(
                f"{self.number} sequences over {self.states} tokens are too few: give at"
                " least 1 over 2"
            )
        if min(self.parents, default=1) < 1 or len(set(self.parents)) != len(self.parents):
            raise EigenlensError(f"parents are different offsets from 1 on, not {self.parents}")
        if self.length <= max(self.parents, default=0):
            raise EigenlensError(
                f"a sequence of {self.length} tokens ends before its parents {self.parents} are"
                " there"
            )
        if self.alpha <= 0:
            raise EigenlensError(f"the Dirichlet's α is above 0, not {self.alpha}")

    def draw(self, seed: int = 0) -> Drawn:
        """The sequences of a seed."""
        rng = np.random.default_rng(seed)
        N, L, d = self.number, self.length, self.states
        kernels = rng.dirichlet([self.alpha] * d, size=(N, d ** len(self.parents)))  # (N, pasts, d)
        steps = kernels.cumsum(2)
        first = max(self.parents, default=0)
        tokens = np.empty((N, L + 1), dtype=np.int64)
        tokens[:, :first] = rng.integers(d, size=(N, first))
        rows = np.arange(N)
        for t in range(first, L + 1):
            past = _code([tokens[:, t - j] for j in self.parents], d, N)
            tokens[:, t] = (rng.random(N)[:, None] >= steps[rows, past, :-1]).sum(1)
        past = _code([tokens[:, L - j] for j in self.parents], d, N)
        return Drawn(torch.from_numpy(tokens), torch.from_numpy(kernels[rows, past]), self)


def _code(columns: list[np.ndarray], d: int, N: int) -> np.ndarray:
    """The number of each past, the nearest parent counting most."""
    code = np.zeros(N, dtype=np.int64)
    for column in columns:
        code = code * d + column
    return code


@dataclass(frozen=True, eq=False)
class Drawn:
    """`tokens` (N, L + 1), the last of which is asked for, and `truth` (N, d).

    `truth` is the kernel's distribution of that last token.
    """

    tokens: Tensor
    truth: Tensor
    source: Markov

    @property
    def target(self) -> Tensor:
        """What follows, (N,)."""
        return self.tokens[:, -1]

    def counts(self, window: int) -> tuple[Tensor, Tensor]:
        """How often each token follows each context of `window` tokens, and the last context.

        Their shapes are (N, d^window, d) and (N,).

        All that a model which compares contexts and averages over places can know of a sequence.
        The context of a place l is `Σ_j x_{l−j} d^(window−j)`, and only places with a full context
        count: there are `L − window`.
        """
        N, d = len(self.tokens), self.source.states
        L = self.source.length
        if d**window > 4096 or window >= L:
            raise EigenlensError(
                f"{d}^{window} contexts of sequences of {L} tokens are not counted; take a smaller"
                " window"
            )
        code = torch.zeros(N, L + 1 - window, dtype=torch.long)
        for j in range(1, window + 1):
            code = code * d + self.tokens[:, window - j : L + 1 - j]
        found = torch.zeros(N, d**window * d, dtype=torch.float64)
        places = code[:, :-1] * d + self.tokens[:, window:L]
        found.scatter_add_(1, places, torch.ones_like(places, dtype=torch.float64))
        return found.view(N, d**window, d), code[:, -1]

    @property
    def floor(self) -> float:
        """The loss of whoever knows the kernels, `−log π(target | parents)` in the mean (nats)."""
        chance = self.truth.gather(1, self.target[:, None])
        return -float(chance.clamp_min(math.ulp(0.0)).log().mean())
