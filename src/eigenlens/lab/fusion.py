"""Hierarchical fusion (arXiv 2202.08625): a model reads out all its layers, not the last alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import EigenlensError
from ..names import unknown_name

FUSIONS = ("concat", "max", "gate")


class Fusion(nn.Module):
    """One stream of those of all layers, `H_k (B, T, C)`, k = 1 … L.

    "concat": `Σ_k α_k H_k` with learned α. A linear map of the concatenation `[H_1 … H_L]` has the
    form `Σ_k H_k W_k`; here each `W_k` is `α_k I`, one number per layer, which is where the name
    comes from. It starts as the mean, α = 1/L. "max": the largest of each element, with nothing to
    learn. "gate": `Σ_k g_k ⊙ H_k` with `g = softmax_k(H_k w)`, one weight per token and layer, by a
    map w that the layers share. It starts as the mean, w = 0.

    >>> Fusion("gate", layers=3, width=8)([torch.randn(2, 5, 8) for _ in range(3)]).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, kind: str, layers: int, width: int) -> None:
        super().__init__()
        if kind not in FUSIONS:
            raise unknown_name("fusion", kind, FUSIONS)
        if layers < 1:
            raise EigenlensError(f"a fusion needs at least 1 layer, not {layers}")
        self.kind, self.layers = kind, layers
        if kind == "concat":
            self.alpha = nn.Parameter(torch.full((layers,), 1 / layers))
        elif kind == "gate":
            self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, streams: Sequence[Tensor]) -> Tensor:
        if len(streams) != self.layers:
            raise EigenlensError(
                f"this fusion is of {self.layers} layers, and it was given {len(streams)}"
            )
        stacked = torch.stack(list(streams))  # (L, B, T, C)
        if self.kind == "concat":
            return torch.einsum("k,kbtc->btc", self.alpha, stacked)
        if self.kind == "max":
            return stacked.amax(0)
        return (self._gates(stacked)[..., None] * stacked).sum(0)

    def gates(self, streams: Sequence[Tensor]) -> Tensor:
        """The weight of each layer at each token, (L, B, T), which sums to 1 over the layers."""
        if self.kind != "gate":
            raise EigenlensError(
                f"the fusion {self.kind!r} has no gates; they are those of the fusion 'gate'"
            )
        return self._gates(torch.stack(list(streams)))

    def _gates(self, stacked: Tensor) -> Tensor:
        return (stacked @ self.weight).softmax(0)
