"""What the readers of all families share.

Whether parts exist, how attention and MLPs are run, and the linear maps of an MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .blocks import BlockCall, Mlp
from .check import first_of


def has_parts(module: Any, *paths: str) -> bool:
    """Whether all the parts exist and are modules: `attention.output.dense`."""
    for path in paths:
        found = module
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is None:
            return False
    return True


def without_arguments(given: BlockCall, *names: str) -> BlockCall:
    return {
        name: value
        for name, value in given.items()
        if name not in {"encoder_hidden_states", "encoder_attention_mask", *names}
    }


def run_attention(module: Any) -> Callable[[Tensor, BlockCall], Tensor]:
    return lambda u, given: first_of(module(u, **without_arguments(given)))


def run_plain(module: Any) -> Callable[[Tensor, BlockCall], Tensor]:
    return lambda u, _given: module(u)


GATED = (("gate_proj", "up_proj", "down_proj"), ("wi_0", "wi_1", "wo"))


UNGATED = (
    ("fc1", "fc2"),
    ("c_fc", "c_proj"),
    ("wi", "wo"),
    ("dense_h_to_4h", "dense_4h_to_h"),
    ("lin1", "lin2"),
)


def mlp_parts(module: Any) -> Mlp | None:
    """Return the linear maps of an MLP.

    None for an MLP of another kind (such as a mixture of experts).
    """
    names = ("act_fn", "activation_fn", "act", "activation")
    act = next(
        (getattr(module, name) for name in names if callable(getattr(module, name, None))), None
    )
    if act is None:
        return None
    for gate, wide, narrow in GATED:
        if has_parts(module, gate, wide, narrow):
            return Mlp(getattr(module, wide), getattr(module, narrow), act, getattr(module, gate))
    if has_parts(module, "Wi", "Wo"):
        return Mlp(module.Wi, module.Wo, act, fused=True)
    for wide, narrow in UNGATED:
        if has_parts(module, wide, narrow):
            return Mlp(getattr(module, wide), getattr(module, narrow), act)
    return None
