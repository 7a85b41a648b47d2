"""Buffers that are reused: fresh memory per call costs more in page faults than arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor


class Workspace:
    """Hands out scratch tensors by name: the same name, shape and type give the same memory."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        held = self._held.get(name)
        if (
            held is None
            or held.shape != shape
            or held.dtype != like.dtype
            or held.device != like.device
        ):
            held = self._held[name] = torch.empty(shape, dtype=like.dtype, device=like.device)
        return held

    def copy(self, name: str, source: Tensor) -> Tensor:
        """Return a contiguous copy of `source` in scratch memory."""
        return self.take(name, tuple(source.shape), source).copy_(source)

    def matmul(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """Return `left @ right` in scratch memory; leading dimensions must agree."""
        out = self.take(name, (*left.shape[:-1], right.shape[-1]), left)
        return torch.matmul(left, right, out=out)
