"""Convert half precision to float32 before anything is summed."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` in float32 at least.

    Products of 16-bit numbers, and sums over thousands of tokens, exceed their range and precision.
    """
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
