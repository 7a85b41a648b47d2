"""Other ways to choose the pairs that are attended, dense and masked.

Quality only, nothing of their speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def scale_of(q: Tensor) -> float:
    return q.shape[3] ** -0.5


def by_pattern(
    keep: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    """Dense attention on the pairs that `keep(scores, q, k) → (T, T) bool` allows, head by head.

    Quality only.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, (_, H, T, _), R = torch.empty_like(q), q.shape, q.shape[1] // k.shape[1]
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        for h in range(H):
            x, y = q[0, h] * scale_of(q), k[0, h // R]
            scores = (x @ y.T).masked_fill_(later, -torch.inf)
            out[0, h] = (
                torch.softmax(scores.masked_fill_(~keep(scores, x, y), -torch.inf), -1)
                @ v[0, h // R]
            )
        return out

    return attend


def window(share: float) -> Callable[..., Tensor]:
    """StreamingLLM: four first tokens and the last `w`, which is `w n − w²/2` of `n²/2` pairs."""

    def keep(scores: Tensor, q: Tensor, k: Tensor) -> Tensor:
        n = len(q)
        i, w = torch.arange(n), int(n * (1 - math.sqrt(1 - share)))
        return (i[None] < 4) | (i[None] > i[:, None] - w)

    return keep


def block_means(share: float, block: int = 64, oracle: bool = False) -> Callable[..., Tensor]:
    """The best key blocks of every query block, the same share everywhere, with the first and the
    last two always kept.

    By mean query times mean key, or (`oracle`) by true mass, which uses the later queries of the
    block.
    """

    def keep(scores: Tensor, q: Tensor, k: Tensor) -> Tensor:
        N = len(q) // block
        if oracle:
            value = torch.softmax(scores, -1).view(N, block, N, block).sum((1, 3))
        else:
            value = q.view(N, block, -1).mean(1) @ k.view(N, block, -1).mean(1).T
        i = torch.arange(N)
        forced = (i[None] == 0) | (i[None] > i[:, None] - 2)
        value = value.masked_fill(forced, torch.inf).masked_fill(i[None] > i[:, None], -torch.inf)
        rank = value.argsort(1, descending=True).argsort(1)
        kept = (rank < (share * (i + 1)).ceil().clamp_min(3)[:, None]) & (i[None] <= i[:, None])
        return kept.repeat_interleave(block, 0).repeat_interleave(block, 1)

    return keep


def loki(share: float, rank: int = 16) -> Callable[..., Tensor]:
    """Loki: the keys' first `rank` principal components (of this input) rank the tokens.

    The exact top share of each row.
    """

    def keep(scores: Tensor, q: Tensor, k: Tensor) -> Tensor:
        basis = torch.linalg.eigh(k.T @ k).eigenvectors[:, -rank:]
        cheap = ((q @ basis) @ (k @ basis).T).masked_fill_(scores == -torch.inf, -torch.inf)
        n = len(q)
        most = int(share * n)
        order = cheap.topk(most, 1)  # descending
        number = (share * torch.arange(1, n + 1)).ceil().long().clamp_max(most)
        bar = order.values.gather(1, (number - 1).clamp_min(0)[:, None])
        return cheap >= bar

    return keep
