"""The gated delta rule: a state that decays, and replaces the old value of each key by a new one.

    S_t = α_t S_{t−1} (I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ,      o_t = S_t q_t

α = 1 is the delta rule of DeltaNet (arXiv 2406.06484); without the erasing factor `I − β k kᵀ` it
is gated linear attention (arXiv 2312.06635), here with one decay per head and token; with both it
is Gated DeltaNet (arXiv 2412.06464).

`recurrent` is that loop. `chunked` computes the same with products of matrices. With `H = Sᵀ`, `g_t
= α_1 ⋯ α_t` within a chunk that begins at H₀ and `Γ_tj = g_t / g_j`, the state is the sum of what
remains of H₀ and of one row u_j per token,

    H_t = g_t H₀ + Σ_{j≤t} Γ_tj k_j u_jᵀ,      (I + L) U = diag(β) (V − diag(g) K H₀),      L_tj =
    β_t Γ_tj k_t·k_j  (j < t)

so that with `Z = (I + L)⁻¹ diag(β)`, `Y = Z V` and `W = Z diag(g) K`, all known before any state
is, `U = Y − W H₀`. Only one step remains to be done chunk after chunk: `H ← M H + N`, with `M = g_c
I − K̃ᵀ W`, `N = K̃ᵀ Y` and `K̃ = diag(Γ_c) K`, Γ_c the last row of Γ. Pairs are kept as (key,
query): sums along the last axis are several times faster than along the one before.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .precision import at_least_float32

TOGETHER = 4096
"""How many tokens (of all heads) are computed at once: larger tensors leave the cache."""


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor | None = None,
    beta: Tensor | None = None,
    erase: bool = True,
) -> Tensor:
    """Compute the formula token by token, → `(B, H, T, E)`.

    `q, k (B,H,T,D)`, `v (B,H,T,E)`, `alpha, beta (B,H,T)`.

    Without `alpha` there is no decay, without `beta` the writing strength is one, and without
    `erase` the factor `I − β k kᵀ` is left out.
    """
    S = q.new_zeros(*v.shape[:2], v.shape[3], q.shape[3])  # (B, H, E, D)
    out = []
    for t in range(q.shape[2]):
        # (B, H, D, 1), (B, H, E, 1)
        q_t, k_t, v_t = q[:, :, t, :, None], k[:, :, t, :, None], v[:, :, t, :, None]
        written = v_t
        if alpha is not None:
            S = alpha[:, :, t, None, None] * S
        if erase:
            written = written - S @ k_t
        if beta is not None:
            written = beta[:, :, t, None, None] * written
        S = S + written * k_t.mT
        out.append(S @ q_t)
    return torch.cat(out, 3).mT


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor | None = None,
    beta: Tensor | None = None,
    erase: bool = True,
    chunk: int = 32,
    before: Tensor | None = None,
) -> Tensor:
    """The same as `recurrent`, in chunks of so many tokens: linear in T, with few large products.

    Keys should have at most length one, so that erasing contracts. Half precision is computed in
    single precision. `before` `(B, H, D, E)` is the state `Sᵀ` before the first token, else zero.
    """
    (B, H, T, D), E, kind = q.shape, v.shape[3], v.dtype
    chunk = min(chunk, T)
    short = -T % chunk
    q, k, v = (_chunks(t, short, chunk) for t in (q, k, v))  # (N, B·H, c, D)
    # (N, B·H, c): padding decays nothing
    alpha = None if alpha is None else _chunks(alpha, short, chunk, 1.0)
    beta = None if beta is None else _chunks(beta, short, chunk)
    N, step = q.shape[0], max(1, TOGETHER // (B * H * chunk))
    state = q.new_zeros(B * H, D, E) if before is None else before.reshape(B * H, D, E).to(q.dtype)
    out = []
    for n in range(0, N, step):
        x, y, z = (t[n : n + step].flatten(0, 1) for t in (q, k, v))
        a, b = (None if t is None else t[n : n + step].flatten(0, 1) for t in (alpha, beta))
        part, state = _some(x, y, z, a, b, state, erase)
        out.append(part)
    return torch.cat(out, 1).view(B, H, N * chunk, E)[:, :, :T].to(kind)


def _chunks(t: Tensor, short: int, chunk: int, fill: float = 0.0) -> Tensor:
    """Cut `(B, H, T, …) → (N, B·H, chunk, …)`, with `short` tokens of `fill` added at the end."""
    t = at_least_float32(t)
    if short:
        t = pad(t, (0, 0) * (t.ndim - 3) + (0, short), value=fill)
    return t.reshape(t.shape[0] * t.shape[1], -1, chunk, *t.shape[3:]).transpose(0, 1)


def _some(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    state: Tensor,
    erase: bool,
) -> tuple[Tensor, Tensor]:
    """Return the outputs `(B·H, N, c, E)` of N chunks that begin at `state`, and the state after.

    `q, k (N·B·H, c, D)`, `state (B·H, D, E)`.
    """
    (many, c, D), heads = q.shape, len(state)
    pairs = k @ q.mT  # (N·B·H, c keys, c queries)
    last, first, kept = k.mT, q, k.new_ones(many, 1, 1)  # K̃ᵀ, diag(g) Q, g_c
    if alpha is None:
        pairs = pairs.triu()
    else:
        gamma = _decays(alpha)
        g = gamma[:, :1].mT * alpha[:, :1, None]  # (N·B·H, c, 1)
        pairs, last, first, kept = pairs * gamma, last * gamma[:, None, :, -1], g * q, g[:, -1:]
    if erase:
        # above the diagonal Lᵀ; the rest is not read
        L = k @ (k if beta is None else beta[..., None] * k).mT
        L = L if alpha is None else L * gamma
        one = torch.eye(c, dtype=k.dtype, device=k.device)
        # of the solves the fastest
        Z = torch.linalg.solve_triangular(L, one, upper=True, left=False, unitriangular=True)
        Z = (Z if beta is None else beta[..., None] * Z).mT
        Y, W = Z @ v, Z @ (k if alpha is None else g * k)
        # (N·B·H, D, D)
        M = torch.baddbmm(kept * torch.eye(D, dtype=k.dtype, device=k.device), last, W, alpha=-1)
        first = torch.baddbmm(first, pairs.mT, W, alpha=-1)
    else:
        Y = v if beta is None else beta[..., None] * v
    states = []
    # (B·H, D, E), (B·H, D, D) or (B·H, 1, 1)
    for new, by in zip((last @ Y).split(heads), (M if erase else kept).split(heads)):
        states.append(state)
        state = torch.baddbmm(new, by, state) if erase else torch.addcmul(new, by, state)
    out = torch.baddbmm(pairs.mT @ Y, first, torch.cat(states))
    return out.unflatten(0, (-1, heads)).transpose(0, 1), state


def _decays(alpha: Tensor) -> Tensor:
    """Return `Γ_tj = α_{j+1} ⋯ α_t` at (j, t) for j ≤ t, zero elsewhere: (…, c) → (…, c, c).

    Logarithms are summed from j on, not subtracted from each other: otherwise strong decays before
    j would swallow the weak ones after it.
    """
    c = alpha.shape[-1]
    logs = alpha.clamp_min(torch.finfo(alpha.dtype).tiny).log()
    later = torch.ones(c, c, dtype=torch.bool, device=alpha.device).triu(1)
    return torch.where(later, logs[..., None, :], 0.0).cumsum(-1).exp().triu()
