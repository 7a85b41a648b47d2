"""How much each head contributes to the output of its layer (arXiv 2205.07100).

    c_{t,h} = ‖z_{t,h} W_O^h‖₁ / Σ_h' ‖z_{t,h'} W_O^h'‖₁

z is the output of a head, W_O^h its rows of the output projection. The layer's output is the sum of
these terms, plus a bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def head_terms(z: Tensor, w_o: Tensor) -> Tensor:
    """Return `z^h W_O^h` (B, H, T, C) from `z` (B, H, T, E) and `w_o` (H, E, C).

    Their sum over the heads is the output without its bias.
    """
    return z @ w_o


def head_relevance(z: Tensor, w_o: Tensor) -> Tensor:
    """Return the share c (B, H, T) of each head, which sums to 1 over the heads.

    At a token to which no head contributes, each head has 1/H.

    >>> head_relevance(torch.ones(1, 2, 3, 4), torch.ones(2, 4, 5))[0, :, 0]
    tensor([0.5000, 0.5000])
    """
    return shares(head_terms(z, w_o).abs().sum(3))


def shares(sizes: Tensor) -> Tensor:
    """Return each head's share (B, H, T) of the sizes `‖z^h W_O^h‖₁` (B, H, T).

    1/H if all are zero.
    """
    whole = sizes.sum(1, keepdim=True)
    nothing = whole == 0
    return torch.where(
        nothing, torch.full_like(sizes, 1 / sizes.shape[1]), sizes / whole.masked_fill(nothing, 1.0)
    )


def token_median(c: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Return the median of c (B, H, T) over the tokens of each input, (B, H).

    `tokens` (B, T) is False at padding.
    """
    if tokens is not None:
        c = c.masked_fill(~tokens[:, None], torch.nan)
    return c.nanquantile(0.5, dim=2)


def relevance_map(layers: Sequence[Tensor], tokens: Tensor | None = None) -> Tensor:
    """Return the median of c (B, H, T) over tokens, then over inputs, for each layer: (L, H)."""
    return torch.stack([token_median(c, tokens).nanquantile(0.5, dim=0) for c in layers])


def evenness(relevance: Tensor) -> Tensor:
    """Return the entropy of the shares (…, H) of heads, divided by log H.

    1 if all heads contribute equally, 0 if only one contributes.

    >>> evenness(torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]]))
    tensor([1., 0.])
    """
    p = relevance / relevance.sum(-1, keepdim=True)
    return torch.special.entr(p).sum(-1) / math.log(p.shape[-1])
