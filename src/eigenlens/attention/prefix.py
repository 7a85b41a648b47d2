"""Sums over all keys up to a query, in linear time.

Every attention that is a product of features needs them.

With features `φ(q_i)`, `φ(k_j)` the numerator and denominator of `out_i = Σ_j φ(q_i)·φ(k_j) v_j /
Σ_j φ(q_i)·φ(k_j)` are

    φ(q_i)ᵀ S_i        S_i = Σ_{j≤i} φ(k_j) [v_j, 1]ᵀ        (F, E+1)

That is the recurrence of `delta_rule` without decay and erasing, computed in chunks: S is never
computed for a single token.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .delta_rule import chunked


def with_ones(v: Tensor) -> Tensor:
    """Return `[v, 1]` (…, S, E+1): the denominator is the numerator for values of one."""
    return F.pad(v, (0, 1), value=1.0)


def causal_product(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """Return `Σ_{j≤i} φ(q_i)·φ(k_j) v_j` (B, H, T, E) and `Σ_{j≤i} φ(q_i)·φ(k_j)` (B, H, T, 1).

    `phi_q (B,H,T,F)`, `phi_k (B,H,S,F)`, `v (B,H,S,E)`; if there are fewer queries than keys, they
    are the last ones. Features of padded keys must be zero. Time `O(S F E + T chunk (F + E))`.
    """
    T, S, E = phi_q.shape[2], phi_k.shape[2], v.shape[3]
    values, past = with_ones(v), None
    if T < S:  # every query sees these keys
        past = phi_k[:, :, : S - T].transpose(2, 3) @ values[:, :, : S - T]  # (B, H, F, E+1)
        phi_k, values = phi_k[:, :, S - T :], values[:, :, S - T :]
    # a state that only adds
    out = chunked(phi_q, phi_k, values, erase=False, chunk=chunk, before=past)
    return out[..., :E], out[..., E:]


def full_product(phi_q: Tensor, phi_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same over all keys, for every query: (B, H, T, E) and (B, H, T, 1)."""
    E = v.shape[3]
    out = phi_q @ (phi_k.transpose(2, 3) @ with_ones(v))  # (B, H, F, E+1) first
    return out[..., :E], out[..., E:]


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """Return numerator / denominator; zero for a query that sees no key."""
    return above / below.masked_fill(below == 0, 1.0)
