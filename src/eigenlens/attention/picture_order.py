"""The patches of a picture along a curve, so that tokens in a row lie close together.

Queries in a block share their keys. Row by row, 128 patches of a large picture are a strip from
side to side; along a Hilbert curve they are one region of the picture, whose queries look at much
the same keys. Attention both ways does not depend on the order of its tokens. SpargeAttn (arXiv
2502.18137) orders the tokens of pictures in this way.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=32)
def picture_order(tokens: int, before: int) -> Tensor | None:
    """The tokens of a square picture in the order of a Hilbert curve, `(tokens,)` int64.

    The first `before` tokens are no patches and stay in front. None if the others form no square.

    >>> picture_order(5, 1).tolist()
    [0, 1, 3, 4, 2]
    """
    side = math.isqrt(max(tokens - before, 0))
    if side < 2 or side * side + before != tokens:
        return None
    place = torch.arange(side)
    y, x = (c.flatten() for c in torch.meshgrid(place, place, indexing="ij"))
    order = torch.argsort(_along_the_curve(x, y, (side - 1).bit_length()), stable=True)
    return torch.cat([torch.arange(before), before + order])


def _along_the_curve(x: Tensor, y: Tensor, bits: int) -> Tensor:
    """How far along the Hilbert curve of `2^bits` cells a side each cell lies."""
    found, s = torch.zeros_like(x), 1 << (bits - 1)
    while s:
        right, down = (x & s) > 0, (y & s) > 0
        found = found + s * s * ((3 * right.long()) ^ down.long())
        # turn the quarter so that the curve inside of it begins where the last one ended
        flip = right & ~down
        x, y = (
            torch.where(flip, s - 1 - (x & (s - 1)), x & (s - 1)),
            torch.where(flip, s - 1 - (y & (s - 1)), y & (s - 1)),
        )
        x, y = torch.where(down, x, y), torch.where(down, y, x)
        s >>= 1
    return found
