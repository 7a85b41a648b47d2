"""Tensors as arrays, which travel between processes without being copied into a pickle."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Torch's own tensors begin at a multiple of so many bytes."""


def as_arrays(state: Any) -> Any:
    """Return a dictionary with its tensors as arrays; other values stay as they are."""
    if not isinstance(state, dict):
        return state
    return {
        name: x.detach().cpu().numpy() if isinstance(x, Tensor) else x for name, x in state.items()
    }


def as_tensors(state: Any, own: bool = False) -> Any:
    """Return a dictionary with its arrays as tensors; with `own`, copies that may be changed."""
    if not isinstance(state, dict):
        return state
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return {
            name: _tensor(x, own) if isinstance(x, np.ndarray) else x for name, x in state.items()
        }


def _tensor(x: np.ndarray, own: bool) -> Tensor:
    found = torch.from_numpy(x)
    return found.clone() if own else found


def aligned(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a dictionary whose tensors begin where torch's own do.

    From files and messages they begin anywhere, and a product with them may sum in another order,
    to other last bits.
    """
    return {
        name: x.clone() if x.device.type == "cpu" and x.data_ptr() % ALIGNMENT else x
        for name, x in state.items()
    }
