"""Modules around a model."""

from __future__ import annotations

from torch import nn


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given; any other module is its own."""
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    return module
