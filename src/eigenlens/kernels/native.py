"""Call the native kernel with tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import EigenlensError
from .build import kernel
from .kept_keys import KeptKeys, KeyChoice


def serves(*tensors: Tensor) -> bool:
    """Whether the kernel can compute with these tensors: float32 on the CPU, without gradients."""
    return (
        all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
        and kernel().library is not None
    )


def computes(form: str, *tensors: Tensor) -> bool:
    """Whether the kernel computes in a form: `"native"`, or `"auto"` if it can.

    An error if it is asked for by name and cannot.
    """
    if form not in {"auto", "native"}:
        return False
    can = serves(*tensors)
    if form == "native" and not can:
        missing = kernel().missing
        raise EigenlensError(
            "the native kernel cannot compute this: "
            + (missing or "it takes float32 on the processor, without gradients")
        )
    return can


def attend(
    q: Tensor, k: Tensor, v: Tensor, kept: KeptKeys, scale: float, valid: Tensor | None
) -> Tensor:
    """Attend from every block of queries to its keys, with the means of what was dropped.

    Shapes: `q (B,H,T,D)`, `k (B,G,S,D)`, `v (B,G,S,E)`, `valid (B,S)` bool. The output `(B,H,T,E)`
    lies in memory as `(B,T,H,E)`.
    """
    q, k, v = (_rows(x) for x in (q, k, v))
    (B, H, T, D), (_, G, S, _), E = q.shape, k.shape, v.shape[3]
    out = q.new_empty(B, T, H, E).transpose(1, 2)
    valid = kept.in_order(valid)
    _library().attend(
        *map(_pointer, (q, k, v, out)),
        _numbers((B, H, G, T, S, D, E, kept.block, kept.causal, kept.keys.shape[3], kept.group)),
        _numbers([*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3]]),
        ctypes.c_float(scale),
        *map(_pointer, (kept.keys, kept.counts, kept.ranges, valid)),
        *map(_pointer, (kept.mean, kept.weight, kept.pooled, kept.order, kept.exact)),
        torch.get_num_threads(),
    )
    return out


def choose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    choice: KeyChoice,
    kept: KeptKeys,
    scale: float,
    valid: Tensor | None,
) -> None:
    """Write the keys that some heads keep into `kept`, with the mean of what they drop.

    Shapes as for `attend`; queries and keys may be those of the chosen heads alone, in other
    coordinates.
    """
    q, k, v = (_rows(x) for x in (q, k, v))
    B, _, T, D = q.shape
    valid = kept.in_order(valid)
    heads, units = choice.places.shape[1], kept.ranges.shape[1]
    sizes = (B, heads, units, T, k.shape[2], D, v.shape[3], kept.block, kept.causal)
    _library().choose(
        *map(_pointer, (q, k, v)),
        _numbers([*sizes, kept.keys.shape[3], choice.rows.shape[1], choice.first]),
        _numbers([*q.stride()[:3], *k.stride()[:3], *v.stride()[:3]]),
        ctypes.c_float(scale),
        *map(_pointer, (choice.places, choice.rows, choice.thresholds, kept.ranges, valid)),
        *map(_pointer, (kept.keys, kept.counts, kept.mean, kept.weight, kept.order)),
        torch.get_num_threads(),
    )


def _library() -> ctypes.CDLL:
    library = kernel().library
    assert library is not None
    return library


def _rows(x: Tensor) -> Tensor:
    """The tensor with its last dimension contiguous, as the kernel reads rows."""
    return x if x.stride(3) == 1 else x.contiguous()


def _pointer(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def _numbers(values: Sequence[int | bool]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*map(int, values))
