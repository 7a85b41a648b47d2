"""Call the native kernel with tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .build import kernel


def serves(*tensors: Tensor) -> bool:
    """Whether the kernel can compute with these tensors: float32 on the CPU, without gradients."""
    return (
        all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
        and kernel().library is not None
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    block: int,
    causal: bool,
    ranges: Tensor,
    keys: Tensor,
    counts: Tensor,
    valid: Tensor | None,
    mean: Tensor | None,
    weight: Tensor | None,
) -> Tensor:
    """Attend from every block of queries to its keys.

    Shapes: `q (B,H,T,D)`, `k (B,G,S,D)`, `v (B,G,S,E)`, `ranges (B,H,N,2)`, `keys (B,H,N,K)`,
    `counts (B,H,N)`, all int32; `valid (B,S)` bool; `mean (B,H,N,E)` and `weight (B,H,N)` are mixed
    into the output `(B,H,T,E)`, which lies in memory as `(B,T,H,E)`.
    """
    q, k, v = (_rows(x) for x in (q, k, v))
    (B, H, T, D), (_, G, S, _), E = q.shape, k.shape, v.shape[3]
    out = q.new_empty(B, T, H, E).transpose(1, 2)
    valid = None if valid is None else valid.contiguous()
    _library().attend(
        *map(_pointer, (q, k, v, out)),
        _numbers((B, H, G, T, S, D, E, block, causal, keys.shape[3])),
        _numbers([*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3]]),
        ctypes.c_float(scale),
        *map(_pointer, (keys, counts, ranges, valid, mean, weight)),
        torch.get_num_threads(),
    )
    return out


def choose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    block: int,
    causal: bool,
    places: Tensor,
    positions: Tensor,
    thresholds: Tensor,
    first: int,
    ranges: Tensor,
    keys: Tensor,
    counts: Tensor,
    valid: Tensor | None,
    mean: Tensor | None,
    weight: Tensor | None,
) -> None:
    """Write the keys that some heads keep into `keys`, `counts`, `mean` and `weight`.

    Shapes as for `attend`; `places (4, n)` int32 holds the places of the heads among those of `q`,
    `k`, `v` and the units, `positions (N, samples)` int32 the sampled rows, `thresholds (n,)` the
    least mean probability of a key that is kept.
    """
    q, k, v = (_rows(x) for x in (q, k, v))
    B, _, T, D = q.shape
    valid = None if valid is None else valid.contiguous()
    sizes = (B, places.shape[1], ranges.shape[1], T, k.shape[2], D, v.shape[3], block, causal)
    _library().choose(
        *map(_pointer, (q, k, v)),
        _numbers([*sizes, keys.shape[3], positions.shape[1], first]),
        _numbers([*q.stride()[:3], *k.stride()[:3], *v.stride()[:3]]),
        ctypes.c_float(scale),
        *map(_pointer, (places, positions, thresholds, ranges, valid, keys, counts, mean, weight)),
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
