"""Compute exact scores of some columns, rows or pairs of a call, and only these.

Cap, position bias and additive mask are part of the score and are applied to what was computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..captures import AttentionCall, MaskShapes


def chosen_keys(call: AttentionCall, keys: Tensor) -> Tensor:
    """Return the keys at the positions `keys (H, m)` or `(B, H, m)`: (B, H, m, D)."""
    B, H = call.q.shape[:2]
    input_, head = (
        torch.arange(B, device=keys.device)[:, None, None],
        torch.arange(H, device=keys.device)[:, None],
    )
    return call.k[input_, head // call.group, keys]


def chosen_queries(call: AttentionCall, queries: Tensor) -> Tensor:
    """Return the scaled queries at the positions `queries (H, m)` or `(B, H, m)`: (B, H, m, D)."""
    B, H = call.q.shape[:2]
    input_, head = (
        torch.arange(B, device=queries.device)[:, None, None],
        torch.arange(H, device=queries.device)[:, None],
    )
    return call.scaled_q[input_, head, queries]


def column_scores(call: AttentionCall, keys: Tensor) -> Tensor:
    """Return the scores of all queries with the keys at `keys (H, m)`, (B, H, T, m).

    Cost: T·m·D per head and input.
    """
    products = call.scaled_q @ chosen_keys(call, keys).transpose(2, 3)
    return _shaped(call, products, lambda x: gather_along(x, keys, 3, call.heads))


def row_scores(call: AttentionCall, queries: Tensor) -> Tensor:
    """Return the scores of the queries at `queries (H, m)` with all keys, (B, H, m, S).

    Cost: S·m·D per head and input.
    """
    products = chosen_queries(call, queries) @ call.keys.transpose(2, 3)
    return _shaped(call, products, lambda x: gather_along(x, queries, 2, call.heads))


def pair_scores(call: AttentionCall, pairs: Tensor) -> Tensor:
    """Return the scores of single pairs, `pairs (H, m)` holding `i·S + j`: (B, H, m).

    Cost: m·D per head and input.
    """
    S = call.k.shape[2]
    i, j = torch.div(pairs, S, rounding_mode="floor"), pairs % S
    products = (chosen_queries(call, i) * chosen_keys(call, j)).sum(3)[:, :, None]  # (B, H, 1, m)

    def taken(x: Tensor) -> Tensor:
        wide = x.expand(*x.shape[:-2], call.q.shape[2], S).flatten(-2)[..., None, :]  # (…, 1, T·S)
        return gather_along(wide, pairs, 3, call.heads)

    return _shaped(call, products, taken)[:, :, 0]


def gather_along(x: Tensor, index: Tensor, dim: int, heads: int) -> Tensor:
    """Return the entries of `x` at `index (…, H, m)` of dimension 2 or 3: (b, H, …).

    `x` is broadcastable to (B, H, T, S).
    """
    x = x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))
    if x.shape[dim] == 1:
        return x
    index = index.reshape((1,) * (3 - index.ndim) + tuple(index.shape))
    b, other = max(x.shape[0], index.shape[0]), x.shape[5 - dim]
    x = x.expand(b, heads, *x.shape[2:])
    at = index[:, :, None, :] if dim == 3 else index[:, :, :, None]
    size = (b, heads, other, index.shape[2]) if dim == 3 else (b, heads, index.shape[2], other)
    return x.gather(dim, at.expand(size))


def _shaped(call: AttentionCall, products: Tensor, taken: Callable[[Tensor], Tensor]) -> Tensor:
    if call.linear:
        return products
    mask = None if call.mask is None or call.mask.dtype == torch.bool else taken(call.mask)
    part = replace(
        call, bias=None if call.bias is None else taken(call.bias), mask=mask, shapes=MaskShapes()
    )
    return part.shaped(products)
