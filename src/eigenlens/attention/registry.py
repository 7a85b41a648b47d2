"""Attention mechanisms by name, ours and those a user brings, as transformers models can use them.

A mechanism has the signature of transformers' attention interface,

    (module, q (B,H,T,D), k (B,G,S,D), v (B,G,S,E), mask, scaling, dropout, **kw) → (out (B,T,H,E), weights or None)

and is registered together with the function that builds its masks: without one, transformers hands over no mask at all, and
causality and padding vanish without a sign.

>>> register("mine", mechanism)
>>> model.set_attn_implementation("mine")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import EigenlensError

Mechanism = Callable[..., tuple[Any, Any]]

_ours: dict[str, Mechanism] = {}


def register(name: str, mechanism: Mechanism, mask_function: Callable[..., Any] | None = None) -> None:
    """Let models attend by `name`. The masks are those of `sdpa` unless another function is given.

    A name of transformers' own is refused; a name registered here before is replaced.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not callable(mechanism):
        raise EigenlensError(f"the attention mechanism {name!r} is not callable: {mechanism!r}")
    if name not in _ours and (name == "eager" or name in ALL_ATTENTION_FUNCTIONS.valid_keys()):
        raise EigenlensError(f"transformers already has an attention called {name!r}; choose another name")
    AttentionInterface.register(name, mechanism)
    AttentionMaskInterface.register(name, mask_function or sdpa_mask)
    _ours[name] = mechanism


def registered() -> dict[str, Mechanism]:
    """The mechanisms registered through this package, by name."""
    return dict(_ours)
