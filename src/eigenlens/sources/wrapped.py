"""Modules around a model."""

from __future__ import annotations

from torch import nn


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given; any other module is its own."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else module
