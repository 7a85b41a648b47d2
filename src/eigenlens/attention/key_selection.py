"""Which keys a block of queries attends to, decided from a few exact attention rows.

For block `I` of queries of a head, the rows `s` of a few sampled queries are computed exactly, and
key j is scored by the mean attention they give it,

    m_Ij = mean_s softmax_j(q_s · k_j / √d).

Keys with `m_Ij ≥ τ` are kept. For a given number of pairs, the least attention is lost if one
threshold applies to every pair; so heads that look everywhere keep many keys and local heads almost
none. The thresholds come from a plan.

In a causal call the rows are `i₀, i₀ − stride, …`, at or before the first query of the block, so
that no choice depends on a later token: rows inside the block would choose better, but would tell
each query which keys later queries look at, and a measured loss would then be too low. The last
queries of an input need no choice: they attend to every key. Both ways
there is no such order, and the rows lie evenly inside the block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.kept_keys import KeptKeys, KeyChoice

CHUNK = 8
"""Query blocks that are scored together, so that buffers fit a cache."""


def sampled_rows(
    T: int, block: int, samples: int, stride: int, causal: bool, device: torch.device | str = "cpu"
) -> Tensor:
    """The queries that choose for each block, `(N, samples)` int32.

    >>> sampled_rows(256, 128, 2, 16, True).tolist()
    [[0, 0], [128, 112]]
    """
    starts = torch.arange(0, T, block, device=device)[:, None]
    turns = torch.arange(samples, device=device)
    if causal:
        return (starts - turns * stride).clamp_min(0).to(torch.int32)
    return (starts + (2 * turns + 1) * block // (2 * samples)).clamp_max(T - 1).to(torch.int32)


def choose_by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    choice: KeyChoice,
    kept: KeptKeys,
    scale: float,
    valid: Tensor | None,
) -> None:
    """The choice of `native.choose` in torch: same arguments, same result.

    Only keys up to the last sampled row of a chunk of blocks are scored, which halves the products
    of a causal call.
    """
    q, k, v = (kept.rows_in_order(x) for x in (q, k, v))
    valid, S, device = kept.in_order(valid), k.shape[2], q.device
    qs, ks, vs, us = choice.places.long()
    place = torch.arange(S, device=device)
    real = torch.ones(len(q), S, dtype=torch.bool, device=device) if valid is None else valid
    start = real.int().argmax(1)  # (B,)
    sink = (place >= start[:, None]) & (place < start[:, None] + choice.first)  # (B, S)
    limit = choice.thresholds.to(q)[:, None, None]
    for begin in range(0, len(choice.rows), CHUNK):
        rows = choice.rows[begin : begin + CHUNK].long()  # (c, samples)
        seen = int(rows.max()) + 1 if kept.causal else S
        # (B, n, c, samples, seen)
        scores = (q[:, qs][:, :, rows.flatten()] * scale) @ k[:, ks, :seen].transpose(2, 3)
        scores = scores.unflatten(2, rows.shape)
        hidden = ~real[:, None, None, None, :seen]
        if kept.causal:
            hidden = hidden | (place[:seen] > rows[..., None])
        pattern = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).nan_to_num()
        counted = real[:, rows]  # (B, c, samples)
        number = counted.sum(2)[:, None, :, None]  # (B, 1, c, 1)
        mass = (pattern * counted[:, None, ..., None]).sum(3) / number.clamp_min(1)
        mass = torch.nn.functional.pad(mass, (0, S - seen))  # (B, n, c, S)
        low, high = kept.ranges[:, us, begin : begin + CHUNK].long().unbind(3)
        far = real[:, None, None] & (
            (place < low[..., None])
            if kept.causal
            else (place < low[..., None]) | (place >= high[..., None])
        )
        keep = far & (sink[:, None, None] | (mass >= limit) | (number == 0))
        _write(keep, kept, us, begin)
        if kept.mean is None or kept.weight is None:
            continue
        dropped = mass * (far & ~keep)
        lost = dropped.sum(3)
        kept.weight[:, us, begin : begin + CHUNK] = lost
        kept.mean[:, us, begin : begin + CHUNK] = (dropped @ v[:, vs]) / lost.clamp_min(1e-30)[
            ..., None
        ]


def _write(keep: Tensor, kept: KeptKeys, heads: Tensor, begin: int) -> None:
    """List the kept keys of some heads and blocks, ascending."""
    number = keep.sum(3)
    kept.counts[:, heads, begin : begin + CHUNK] = number.to(kept.counts.dtype)
    most = int(number.max())
    # kept keys first, each in its order
    order = keep.to(torch.uint8).argsort(dim=3, descending=True, stable=True)[..., :most]
    kept.keys[:, heads, begin : begin + CHUNK, :most] = order.to(kept.keys.dtype)
