"""Tell whether two models have the same weights, also if one of them is in another precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

TENSORS, NUMBERS = 64, 8
"""How many tensors are sampled, and how many numbers of each."""


def sample_weights(module: nn.Module) -> dict[str, Any]:
    """A few numbers of a model's weights, and the precision they were in.

    >>> sample_weights(nn.Linear(4, 4))["dtype"]
    'float32'
    """
    known = {key: x for key, x in sorted(module.state_dict().items()) if _counts(key, x)}
    names = list(known)[:: max(1, len(known) // TENSORS)][:TENSORS]
    kinds = {known[name].dtype for name in names}
    coarsest = min(kinds, key=_bits) if kinds else torch.float32
    values = {name.replace("_orig_mod.", ""): _some(known[name]) for name in names}
    return {"dtype": str(coarsest).removeprefix("torch."), "values": values}


def same_weights(sample: Mapping[str, Any], module: nn.Module) -> bool:
    """Whether a model has the weights of a sample, up to the coarser of their precisions."""
    state = {key.replace("_orig_mod.", ""): x for key, x in module.state_dict().items()}
    values: Mapping[str, Sequence[float]] = sample["values"]
    if not values or any(name not in state for name in values):
        return False
    mine = getattr(torch, sample["dtype"])
    for name, stored in values.items():
        theirs = state[name].dtype
        coarse = min((mine, theirs), key=_bits)
        a, b = (torch.tensor(x, dtype=torch.float64) for x in (stored, _some(state[name])))
        if a.shape != b.shape:
            return False
        # numbers that were rounded to two 16-bit formats may differ by one step of the coarser
        steps = (
            0.0 if 23 in {_bits(mine), _bits(theirs)} or mine == theirs else 2.0 ** -_bits(coarse)
        )
        near = (a.to(coarse).double() - b.to(coarse).double()).abs() <= steps * a.abs()
        if not bool(near.all()):
            return False
    return True


def _counts(key: str, x: torch.Tensor) -> bool:
    return "pooler" not in key and x.is_floating_point() and x.numel() > 0


def _some(x: torch.Tensor) -> list[float]:
    flat = x.detach().flatten()
    step = max(1, flat.numel() // NUMBERS)
    return flat[::step][:NUMBERS].cpu().double().tolist()


def _bits(dtype: torch.dtype) -> int:
    """Bits after the point of a float."""
    return {torch.float64: 52, torch.float32: 23, torch.float16: 10}.get(dtype, 7)
