"""How much each head of a layer contributes to what the layer gives (arXiv 2205.07100).

    c_{t,h} = ‖z_{t,h} W_O^h‖₁ / Σ_h' ‖z_{t,h'} W_O^h'‖₁

z is what a head gives, W_O^h its rows of the output projection. The output is the sum of these
terms, and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def head_terms(z: Tensor, w_o: Tensor) -> Tensor:
    """`z^h W_O^h` (B, H, T, C) of `z` (B, H, T, E) and `w_o` (H, E, C).

    Summed over the heads, they are the output less its bias.
    """
    return z @ w_o


def head_relevance(z: Tensor, w_o: Tensor) -> Tensor:
    """c (B, H, T), which sums to 1 over the heads.

    A token to which no head contributes counts all alike, 1/H.

    >>> head_relevance(torch.ones(1, 2, 3, 4), torch.ones(2, 4, 5))[0, :, 0]
    tensor([0.5000, 0.5000])
    """
    return shares(head_terms(z, w_o).abs().sum(3))


def shares(sizes: Tensor) -> Tensor:
    """Of the sizes `‖z^h W_O^h‖₁` (B, H, T) each head's share, (B, H, T).

    1/H where all are zero.
    """
    whole = sizes.sum(1, keepdim=True)
    nothing = whole == 0
    return torch.where(
        nothing, torch.full_like(sizes, 1 / sizes.shape[1]), sizes / whole.masked_fill(nothing, 1.0)
    )


def token_median(c: Tensor, tokens: Tensor | None = None) -> Tensor:
    """The median of c (B, H, T) over the tokens of each input, (B, H).

    `tokens` (B, T) is False at padding.
    """
    if tokens is not None:
        c = c.masked_fill(~tokens[:, None], torch.nan)
    return c.nanquantile(0.5, dim=2)


def relevance_map(layers: Sequence[Tensor], tokens: Tensor | None = None) -> Tensor:
    """The map of layers × heads: the median of c (B, H, T) over tokens, then over inputs."""
    return torch.stack([token_median(c, tokens).nanquantile(0.5, dim=0) for c in layers])


def evenness(relevance: Tensor) -> Tensor:
    """Entropy of the shares (…, H) of heads over log H.

    1 where all count alike, 0 where one head is all there is.

    >>> evenness(torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]]))
    tensor([1., 0.])
    """
    p = relevance / relevance.sum(-1, keepdim=True)
    return torch.special.entr(p).sum(-1) / math.log(p.shape[-1])
