"""Modules that wrap a model."""

from __future__ import annotations

from torch import nn


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module that was given to `torch.compile`, or the module itself."""
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    return module
