"""Queries and keys as they were before the rotary position embedding."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EigenlensError


class RotaryRecorder:
    """Notes the `(cos, sin)` that each attention module gets, and undoes the rotation.

    It turns queries and keys with the family's own function by the opposite angle: R(θ)⁻¹ = R(−θ).
    """

    def __init__(self, model: nn.Module) -> None:
        self._angles: dict[int, tuple[Tensor, Tensor]] = {}
        self._hooks = [
            module.register_forward_pre_hook(self._note, with_kwargs=True)
            for module in model.modules()
            if _rotate(module) is not None and "Attention" in type(module).__name__
        ]

    def _note(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        for value in (kwargs.get("position_embeddings"), *args):
            if (
                isinstance(value, tuple)
                and len(value) == 2
                and all(isinstance(x, Tensor) for x in value)
            ):
                self._angles[id(module)] = (value[0], value[1])

    def undo(self, module: nn.Module, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        rotate, angles = _rotate(module), self._angles.pop(id(module), None)
        if rotate is None or angles is None:
            raise EigenlensError(
                f"{type(module).__name__} has no rotary embedding to undo; leave out the option"
                " before-rope"
            )
        cos, sin = angles
        # 1, but for the length-extending kinds that scale both
        scaling = (cos.square() + sin.square()).mean()
        turned = _turn(rotate, q, k, cos, -sin)
        before = (turned[0] / scaling, turned[1] / scaling)
        again = _turn(rotate, before[0], before[1], cos, sin)
        gap = (again[0] - q).abs().max() + (again[1] - k).abs().max()
        if gap > 1e-3 * (1 + q.abs().max() + k.abs().max()):
            raise EigenlensError(
                f"the rotary embedding of {type(module).__name__} cannot be undone (it is not a"
                " pure rotation)"
            )
        return before

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _turn(rotate: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate x, or only its leading dimensions if the family rotates only those."""
    turned = cos.shape[-1]
    try:
        return rotate(q, k, cos, sin)
    except RuntimeError:
        if turned >= q.shape[-1]:
            raise
    heads = rotate(q[..., :turned], k[..., :turned], cos, sin)
    return torch.cat([heads[0], q[..., turned:]], -1), torch.cat([heads[1], k[..., turned:]], -1)


def _rotate(module: nn.Module) -> Any:
    return getattr(sys.modules.get(type(module).__module__, torch), "apply_rotary_pos_emb", None)
