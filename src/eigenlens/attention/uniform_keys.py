"""Attention to evenly spaced keys only: what a subset gives without any statistics.

This is one half of the fixed pattern of sparse transformers (arXiv 1904.10509), the places that all
queries see, alone and without a causal mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import EigenlensError
from .call_terms import CallTerms, probabilities
from .contract import Mechanism
from .registry import mechanism
from .softmax import attend


def evenly_spaced(n: int, m: int) -> Tensor:
    """Return m of n positions, the middles of m equal segments: `⌊(i + ½) n/m⌋`.

    >>> evenly_spaced(8, 2)
    tensor([2, 6])
    """
    if not 1 <= m <= n:
        raise EigenlensError(f"{m} keys cannot be chosen from {n}")
    return ((2 * torch.arange(m) + 1) * n) // (2 * m)


@dataclass(frozen=True)
class UniformSettings:
    """`keys` m: how many keys are used, at most as many as there are."""

    keys: int = 32

    def __post_init__(self) -> None:
        if self.keys < 1:
            raise EigenlensError(f"keys must be at least 1, not {self.keys}")


@mechanism("uniform-keys")
class UniformKeys(Mechanism):
    """`A = softmax(Q K_Sᵀ/√d)` on the same m evenly spaced keys S for every head, and 0 elsewhere.

    They are evenly spaced among the tokens without padding, so that padding does not change the
    result.

    >>> make("uniform-keys", keys=8)(q, k, v).shape  # (B, H, T, E)
    """

    Settings = UniformSettings
    directions = ("both ways",)
    linear = True
    settings: UniformSettings

    @classmethod
    def of(cls, keys: int) -> UniformKeys:
        return cls(UniformSettings(keys))

    def pattern(self, q: Tensor, k: Tensor, given: CallTerms) -> Tensor:
        places, real = self._chosen(k, given)
        # (B or 1, m, S)
        chosen = (torch.arange(k.shape[2], device=k.device) == places[..., None]) & real[..., None]
        return probabilities(
            given.scores(q, k).masked_fill(~chosen.any(1)[:, None, None, :], -torch.inf)
        )

    def fast(self, q: Tensor, k: Tensor, v: Tensor, given: CallTerms) -> Tensor:
        places, real = self._chosen(k, given)
        if given.keys is None:
            return attend(q, k[:, :, places[0]], v[:, :, places[0]], CallTerms(given.scale))
        index = places[:, None, :, None]
        # (B, H, m, d)
        k, v = (x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in (k, v))
        return attend(q, k, v, CallTerms(given.scale, keys=real))

    def _chosen(self, k: Tensor, given: CallTerms) -> tuple[Tensor, Tensor]:
        """Return the places of the keys (B or 1, m), and which of them exist.

        An input may have fewer tokens than m.
        """
        S, device = k.shape[2], k.device
        m = min(self.settings.keys, S)
        if given.keys is None:
            places = evenly_spaced(S, m).to(device)[None]
            return places, torch.ones_like(places, dtype=torch.bool)
        n = given.keys.sum(1, keepdim=True)  # (B, 1) tokens that stand
        few = n.clamp(1, m)
        slots = torch.arange(m, device=device)[None]
        # of the tokens that stand, which
        rank = (((2 * slots + 1) * n) // (2 * few)).clamp_max(S - 1)
        # those that stand first: (B, S)
        order = (~given.keys).to(torch.uint8).argsort(dim=1, stable=True)
        return order.gather(1, rank), (slots < few) & (n > 0)

    def cost(self, n: int, d: int) -> int:
        """`nmd` for the scores, `nmd` for the values."""
        return 2 * n * min(self.settings.keys, n) * d
