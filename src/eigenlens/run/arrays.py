"""Tensors as arrays: these travel between processes without being copied into a pickle."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_arrays(state: Any) -> Any:
    """The tensors of a dictionary as arrays; anything else as it is."""
    if not isinstance(state, dict):
        return state
    return {
        name: x.detach().cpu().numpy() if isinstance(x, Tensor) else x for name, x in state.items()
    }


def as_tensors(state: Any, own: bool = False) -> Any:
    """The arrays of a dictionary as tensors, in memory of their `own` if they are to be changed."""
    if not isinstance(state, dict):
        return state
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return {
            name: torch.from_numpy(np.array(x) if own else x) if isinstance(x, np.ndarray) else x
            for name, x in state.items()
        }
