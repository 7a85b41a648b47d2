"""Tensors as arrays, which travel between processes without being copied into a pickle."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


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
            name: torch.from_numpy(np.array(x) if own else x) if isinstance(x, np.ndarray) else x
            for name, x in state.items()
        }
