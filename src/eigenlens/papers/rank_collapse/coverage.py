"""Which stacks of a model the theory is about: attention without a mask and without positions.

The cubic rate needs scores that are products of the stream, `x_i W_QK x_jᵀ` up to terms of the
query or of the key alone. A mask, a position bias or a rotary embedding makes contraction linear in
the residual, see the claims about orders.
"""

from __future__ import annotations

from typing import Any

import torch

from ...anatomy.frozen import FrozenStack
from ...collapses.bounds_model import are_products
from .single_paths import single_paths

COVERED = "covered"


def coverage(frozen: FrozenStack) -> str:
    """`COVERED`, or what the scores of the first layer have besides products of the stream."""
    attention = next(iter(frozen.branches("attention"))).attention
    call = attention.call
    found = []
    kept = torch.arange(frozen.inputs.shape[1])
    if frozen.valid is not None:
        kept = kept[frozen.valid[0]]
    if not bool(call.scores()[0][:, kept][:, :, kept].isfinite().all()):
        found.append("a mask")
    if not call.linear:
        found.append("a position bias or a cap")
    if not are_products(attention, 0, kept):
        found.append("a rotary embedding or a norm of queries and keys")
    return " and ".join(found) or COVERED


def stack_facts(frozen: FrozenStack, paths: int, seed: int) -> dict[str, Any]:
    """Coverage and single paths of a stack; paths only where every query sees every key."""
    said = coverage(frozen)
    rows = single_paths(frozen, paths, seed) if said == COVERED else []
    return {"stack": frozen.name, "theory": said, "single": rows}
