"""What a mask means: which pairs of query and key it excludes, and what it adds to scores.

A mask is boolean (True: the query may look) or additive (a number for each pair). All code that
reads a mask uses this module, so that capture, mechanisms and drop-ins never disagree about a pair.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import EigenlensError

EXCLUDES = -8192.0
"""An additive mask excludes a pair if its number is this low or lower.

Models write −1e4, −1e9, the least number of their dtype, or −∞. The bound lies above all of them:
−1e4 rounds to −9984 in bfloat16, and a bound near it would depend on the dtype. It is −2¹³, which
float32, float16 and bfloat16 all represent exactly, so that the comparison is the same in each. It
lies far below every score: exp(−8192) is zero even in float64, unless scores of one row are more
than 7,000 apart, so a pair that is excluded has the probability zero that it has anyway.

Biases of positions can be lower (ALiBi with the slope ½ reaches −8192 after 16,384 tokens). Capture
does not read them as masks: it keeps `bias` apart from `mask`. Where a model adds them into its
mask, such far pairs are excluded. Their probability is zero either way, because the nearest key of
the same row has a bias near zero.
"""


def excluded(mask: Tensor) -> Tensor:
    """Return where a mask forbids the query to look, bool, of the shape of the mask.

    >>> excluded(torch.tensor([0.0, -3.0, -9984.0, -torch.inf]))
    tensor([False, False,  True,  True])
    """
    return ~mask if mask.dtype == torch.bool else mask <= EXCLUDES


def adds_numbers(mask: Tensor) -> bool:
    """Whether a mask adds numbers to the scores of pairs that it does not exclude."""
    return mask.dtype != torch.bool and bool((mask[~excluded(mask)] != 0).any())


def added_numbers(mask: Tensor) -> Tensor:
    """Return what an additive mask adds to the scores: its numbers, and 0 where it excludes."""
    return mask.masked_fill(excluded(mask), 0)


def read_mask(mask: Tensor, T: int, S: int) -> tuple[bool, Tensor | None, Tensor | None]:
    """Return `causal`, `keys` (B, S) and `pairs` of a mask as transformers gives it.

    The mask is (B or 1, H or 1, T or 1, S).

    A mask of causality and padding is split into the two, which mechanisms without a T × S matrix
    need. An additive mask that only excludes is read like a boolean one; one that adds numbers
    stays as it is, in `pairs`.

    >>> read_mask(torch.ones(2, 1, 4, 4, dtype=torch.bool).tril(), 4, 4)
    (True, None, None)
    """
    if mask.ndim != 4 or mask.shape[3] != S or mask.shape[2] not in (1, T):
        raise EigenlensError(
            f"a mask of shape {tuple(mask.shape)} does not fit {T} queries of {S} keys"
        )
    if adds_numbers(mask):
        return False, None, mask
    allowed = ~excluded(mask)
    keys = allowed[:, 0, -1]  # (B, S): the last query sees every key that is no padding
    known = None if bool(keys.all()) else keys
    if torch.equal(allowed, keys[:, None, None].expand_as(allowed)):
        return False, known, None
    before = torch.ones(T, S, dtype=torch.bool, device=mask.device).tril(S - T)
    if torch.equal(allowed, (before & keys[:, None, None]).expand_as(allowed)):
        return True, known, None
    return False, None, allowed


def with_bias(pairs: Tensor | None, bias: Tensor | None, T: int, S: int) -> Tensor | None:
    """Join a mask or bias of pairs with a bias of positions (…, ≥T, ≥S).

    Only the last T queries of the bias are used.

    A bias of zeros counts as none: models without positions give one, too.
    """
    if bias is None or not bool(bias.any()):
        return pairs
    bias = bias[..., -T:, :S]
    if pairs is None:
        return bias
    return bias.masked_fill(~pairs, -torch.inf) if pairs.dtype == torch.bool else bias + pairs
