"""Choose the keys of a row, and the pairs of a matrix, that are worth an exact score.

Every rule returns sorted positions, and the same ones for the same seed. With the covariance C of
what is not known yet:

    uniform           evenly spaced
    random            without replacement
    pivoted-cholesky  argmax_j C_jj                     greedy D-optimal: the least known entry
    a-optimal         argmax_j ‖C_:j‖² / (C_jj + σ²)    removes most variance from all the others
    q-deim            pivots of the QR of U_mᵀ          best conditioned rows of the leading U

and C ← C − C_:j C_j: / (C_jj + σ²) after every choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..names import unknown_name

Rule = Literal["uniform", "random", "pivoted-cholesky", "a-optimal", "q-deim"]
RULES: tuple[Rule, ...] = get_args(Rule)
GROWTH = 1 / 8
"""How many pairs are chosen between two updates, as a share of those chosen before.

Few at first, when each matters most.
"""
NOTHING = 1e-12
"""A variance at or below this share of the largest one is rounding."""


def middles(n: int, m: int) -> Tensor:
    """Return the middles of m equal parts of 0..n-1, (m,)."""
    _check(m, n)
    return ((torch.arange(m, dtype=torch.float64) + 0.5) * n / m).floor().long()


def random(n: int, m: int, seed: int = 0) -> Tensor:
    """Return m of 0..n-1 without replacement, (m,)."""
    return _shuffled(n, m, seed).sort().values


def pivoted_cholesky(C: Tensor, m: int) -> Tensor:
    """Greedy D-optimal: choose the largest conditional variance each time.

    `C (…, n, n)` → (…, m); n·m² per head.
    """
    return _pivots(C, m).sort(-1).values


def a_optimal(C: Tensor, m: int, noise: float | Tensor = 0.0) -> Tensor:
    """Greedy A-optimal: choose the largest decrease of `tr C` each time.

    `C (…, n, n)`, noise σ² () or (…,) → (…, m); n²·m per head.
    """
    return _falls(C, m, noise).sort(-1).values


def q_deim(U: Tensor, m: int) -> Tensor:
    """Return the pivots of the column-pivoted QR of `U_mᵀ`: `U (…, n, r)` → (…, m).

    The leading eigenvector is first. Cost: n·m² per head.

    If m > r, the others are chosen by leverage, `argmax_j u_j (I + U_SᵀU_S)⁻¹ u_jᵀ`.
    """
    return _pivoted_qr(U, m).sort(-1).values


def select_keys(
    rule: Rule, covariance: Tensor, m: int, seed: int = 0, noise: float | Tensor = 0.0
) -> Tensor:
    """Choose m keys of every head by a rule: covariance of rows (H, n, n) → (H, m), sorted."""
    return rank_keys(rule, covariance, m, seed, noise).sort(-1).values


def rank_keys(
    rule: Rule, covariance: Tensor, m: int, seed: int = 0, noise: float | Tensor = 0.0
) -> Tensor:
    """Like `select_keys`, in the order in which they are chosen, (H, m).

    Evenly spaced ones stay in their own order.
    """
    n, heads = covariance.shape[-1], covariance.shape[:-2]
    _check(m, n)

    def leading() -> Tensor:
        return torch.linalg.eigh(covariance.double())[1].flip(-1)[..., :m]

    ways: dict[Rule, Callable[[], Tensor]] = {
        "uniform": lambda: middles(n, m).expand(*heads, m),
        "random": lambda: _shuffled(n, m, seed).expand(*heads, m),
        "pivoted-cholesky": lambda: _pivots(covariance, m),
        "a-optimal": lambda: _falls(covariance, m, noise),
        "q-deim": lambda: _pivoted_qr(leading(), m),
    }
    return _by(rule, ways)()


def select_pairs(
    rule: Rule, F: Tensor, psi: Tensor, m: int, seed: int = 0, growth: float = GROWTH
) -> Tensor:
    """Choose m pairs of every head in the model `F Fᵀ + diag ψ`, (…, m), sorted.

    F is (…, N, r), ψ is (…, N). No N × N matrix is formed. Given the chosen pairs, the factors z of
    a matrix have the posterior covariance `P = (I + F_SᵀΨ_S⁻¹F_S)⁻¹` (r × r), so an unknown pair
    has the variance `ψ_j + ℓ_j`, `ℓ_j = F_j P F_jᵀ`, and covariances `F_i P F_jᵀ` with the others:

        pivoted-cholesky  argmax ψ_j + ℓ_j
        a-optimal         argmax (F_j P M P F_jᵀ + ψ_j² + 2 ψ_j ℓ_j) / (ψ_j + ℓ_j)
                          with M = Σ_{i ∉ S} F_iᵀ F_i
        q-deim            pivots of F, then as pivoted-cholesky

    Cost: N·r² per round. A round chooses `growth` times the number chosen so far (0: one pair), so
    there are about `(1 + ln(growth·m)) / growth` of them: 58 for 4,096 pairs.
    """
    N = F.shape[-2]
    _check(m, N, "pairs")
    heads = F.shape[:-2]
    ways: dict[Rule, Callable[[], Tensor]] = {
        "uniform": lambda: middles(N, m).expand(*heads, m),
        "random": lambda: _shuffled(N, m, seed).expand(*heads, m),
        "pivoted-cholesky": lambda: _greedy_pairs(F, psi, m, growth, by_variance=True),
        "a-optimal": lambda: _greedy_pairs(F, psi, m, growth, by_variance=False),
        "q-deim": lambda: _pivoted_qr(F, m, psi, growth),
    }
    return _by(rule, ways)().sort(-1).values


def _by(rule: Rule, ways: dict[Rule, Callable[[], Tensor]]) -> Callable[[], Tensor]:
    if rule not in ways:
        raise unknown_name("selection rule", rule, RULES)
    return ways[rule]


def _check(m: int, n: int, what: str = "keys") -> None:
    if not 1 <= m <= n:
        raise EigenlensError(f"{m} {what} cannot be chosen from {n}; ask for 1 to {n}")


def _shuffled(n: int, m: int, seed: int) -> Tensor:
    _check(m, n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:m]


def _column(x: Tensor, j: Tensor) -> Tensor:
    """Return the columns j (…,) of matrices (…, a, n): (…, a)."""
    return x.gather(-1, j[..., None, None].expand(*x.shape[:-1], 1))[..., 0]


def _pivots(C: Tensor, m: int) -> Tensor:
    n = C.shape[-1]
    _check(m, n)
    left = C.diagonal(dim1=-2, dim2=-1).clone()  # conditional variances (…, n)
    floor = left.amax(-1) * NOTHING
    L = C.new_zeros(*C.shape[:-2], m, n)  # rows of the factor
    chosen = torch.zeros_like(left, dtype=torch.bool)
    order = []
    for step in range(m):
        j = left.clamp_min(0).masked_fill(chosen, -1).argmax(-1)  # (…,)
        variance = left.gather(-1, j[..., None])[..., 0]
        column = _column(C, j) - (L * _column(L, j)[..., None]).sum(-2)
        row = torch.where(
            (variance > floor)[..., None], column / variance.clamp_min(1e-300).sqrt()[..., None], 0
        )
        L[..., step, :] = row
        left = left - row.square()
        chosen.scatter_(-1, j[..., None], True)
        order.append(j)
    return torch.stack(order, -1)


def _falls(C: Tensor, m: int, noise: float | Tensor) -> Tensor:
    n = C.shape[-1]
    _check(m, n)
    left = C.clone()
    sigma = torch.as_tensor(noise, dtype=C.dtype, device=C.device)[..., None]
    floor = C.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True) * NOTHING
    chosen = torch.zeros(C.shape[:-1], dtype=torch.bool, device=C.device)
    order = []
    for _ in range(m):
        own = left.diagonal(dim1=-2, dim2=-1)
        known = own <= floor
        # C is symmetric
        gain = torch.where(known, 0, left.square().sum(-1) / (own + sigma).clamp_min(1e-300))
        j = gain.masked_fill(chosen, -1).argmax(-1)
        at = j[..., None]
        column = _column(left, j)
        # (…, 1)
        scale = torch.where(
            known.gather(-1, at), 0, 1 / (own + sigma).gather(-1, at).clamp_min(1e-300)
        )
        left = left - column[..., :, None] * (column * scale)[..., None, :]
        chosen.scatter_(-1, at, True)
        order.append(j)
    return torch.stack(order, -1)


def _greedy_pairs(
    F: Tensor, psi: Tensor, m: int, growth: float, by_variance: bool, first: Tensor | None = None
) -> Tensor:
    """Return pairs in the order of choice, (…, m); `first (…, f)` are already chosen."""
    r = F.shape[-1]
    scale = (psi + F.square().sum(-1)).amax(-1, keepdim=True)
    psi = torch.maximum(psi, torch.where(scale > 0, scale * NOTHING, 1))
    precision = torch.eye(r, dtype=torch.float64, device=F.device).expand(*F.shape[:-2], r, r)
    others = (F.transpose(-1, -2) @ F).double()  # M
    chosen = torch.zeros(psi.shape, dtype=torch.bool, device=F.device)
    picked = psi.new_zeros(*psi.shape[:-1], 0, dtype=torch.long)
    while picked.shape[-1] < m:
        if picked.shape[-1] or first is None:
            P = torch.cholesky_inverse(torch.linalg.cholesky(precision))
            lever = _quadratic(F, P)  # ℓ: (…, N)
            gain = psi + lever
            if not by_variance:
                gain = (_quadratic(F, P @ others @ P) + psi.square() + 2 * psi * lever) / gain
            number = min(max(1, int(growth * picked.shape[-1])), m - picked.shape[-1])
            best = gain.masked_fill(chosen, -1).topk(number, -1).indices  # (…, number)
        else:
            best = first
        chosen.scatter_(-1, best, True)
        picked = torch.cat([picked, best], -1)
        f = F.gather(-2, best[..., None].expand(*best.shape, r))  # (…, number, r)
        f = f.double()
        precision = precision + f.transpose(-1, -2) @ (f / psi.gather(-1, best)[..., None])
        others = others - f.transpose(-1, -2) @ f
    return picked


def _quadratic(F: Tensor, A: Tensor) -> Tensor:
    """Return `F_j A F_jᵀ` of every row, (…, N), for positive semidefinite A (…, r, r)."""
    values, vectors = torch.linalg.eigh(A)
    return (F @ (vectors * values.clamp_min(0).sqrt()[..., None, :]).to(F.dtype)).square().sum(-1)


def _pivoted_qr(U: Tensor, m: int, psi: Tensor | None = None, growth: float = 0.0) -> Tensor:
    from scipy.linalg import qr

    n, r = U.shape[-2:]
    _check(m, n)
    number = min(m, r)
    heads = U[..., :number].reshape(-1, n, number).cpu().double().numpy()
    pivots = [qr(head.T, mode="r", pivoting=True)[1][:number] for head in heads]
    first = (
        torch.stack([torch.from_numpy(p).long() for p in pivots])
        .reshape(*U.shape[:-2], number)
        .to(U.device)
    )
    if number == m:
        return first
    noise = torch.ones_like(U[..., 0]) if psi is None else psi
    return _greedy_pairs(U, noise, m, growth, by_variance=True, first=first)
