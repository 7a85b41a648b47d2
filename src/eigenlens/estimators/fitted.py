"""Projections fitted on the pairs that are attended, by regularised alternating least squares."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..errors import EigenlensError
from ..threads import one_thread
from .estimator import SiteStatistics
from .pair_sums import PairSums, Quadratic
from .rotation import joint, moments
from .subspace import JointSubspace, Truncated

MOST = 32
"""The most coordinates of `joint` in which projections are sought."""
SHARES = (0.5, 0.1)
"""The λ below 1 that are tried."""
ROUNDS = 2
"""How often either projection is solved for."""


class FittedSubspace(Truncated):
    """As `joint`, with projections fitted on the pairs that the mask allows.

    `joint` is the best for queries and keys that do not depend on each other, without a mask. In a
    causal model a query sees earlier keys of its own input, and another pair of projections has
    less error there. With f the mean squared error over attended pairs (`pair_sums`) and g the one
    that `joint` makes small, this makes `(1 − λ) f + λ g` small, beginning at `joint`: one
    projection is given, the other solves R·r linear equations, in turn. g is the ridge: its
    optimum is `joint`, and grows with the distance from it. Each head takes the λ that is best on
    some of the inputs, then all inputs are used. λ = 1 is `joint`, which stays where no fit is
    better there, and where the rank is all R = min(D, 32) coordinates in which it is sought.

    `tail` adds the positions' mean of what is left out, `q̄_i·(I − P_Q P_Kᵀ)(k̄_j − k̄)`. Break-even
    as for `joint`. Cost of fitting a head: 12 solutions of `R⁴r + (Rr)³/3` multiply-adds each.
    """

    name = "joint-fitted"
    needs: ClassVar[tuple[str, ...]] = ("moments", "pairs")
    breaks_even = JointSubspace.breaks_even

    @classmethod
    def fit(cls, statistics: SiteStatistics, rank: int = 8, tail: bool = True, **_: Any) -> Self:
        if not 1 <= rank <= (D := statistics.dimension):
            raise EigenlensError(f"rank must be from 1 to the head dimension {D}, not {rank}")
        found = moments(statistics)
        to_x, to_y = (x[..., :rank] for x in joint(found))
        if statistics.pairs is None:
            raise EigenlensError(
                f"no sums over attended pairs of {statistics.site.full_label} are known; begin them"
                " with `pair_sums`, and add calls"
            )
        train, check = statistics.pairs
        if rank < train.to_x.shape[-1]:
            both = train.merged(check)
            with one_thread():
                maps = [
                    _fit_head(h, rank, g, train, check, both)
                    for h, g in enumerate(_ridge(statistics))
                ]
            to_x = torch.stack([x for x, _ in maps])
            to_y = torch.stack([y for _, y in maps])
        tensors = {"to_x": to_x, "to_y": to_y, "centre": found.key_mean}
        if tail:
            # after the rank, coordinates whose products are the rest: I − P_Q P_Kᵀ and I
            eye = torch.eye(D, dtype=to_x.dtype, device=to_x.device).expand(len(to_x), D, D)
            rest = eye - to_x @ to_y.mT
            keys = found.key_positions - found.key_mean[:, None]
            tensors["x_mean"] = found.query_positions @ torch.cat([to_x, rest], 2)
            tensors["y_mean"] = keys @ torch.cat([to_y, eye], 2)
        kept = {name: x.float().contiguous() for name, x in tensors.items()}
        return cls({"rank": rank, "tail": tail}, kept)


def pair_sums(statistics: SiteStatistics) -> PairSums:
    """Empty sums in the first coordinates of `joint`."""
    to_x, to_y = (x[..., :MOST].contiguous() for x in joint(moments(statistics)))
    return PairSums(to_x, to_y)


def _ridge(statistics: SiteStatistics) -> list[Quadratic]:
    """g of every head: `E(xᵀ(I − M)y)²` for independent x and y, both of variance S."""
    found = moments(statistics)
    to_x, _ = joint(found)
    to_x = to_x[..., :MOST]
    spread = (to_x * (found.queries @ to_x)).sum(1)  # (H, R)
    made = []
    for s in spread.cpu():
        four = torch.einsum("ab,cd->abcd", s.diag(), s.diag())
        made.append(Quadratic(s.square().sum(), s.square().diag(), four))
    return made


def _fit_head(
    head: int, rank: int, ridge: Quadratic, train: PairSums, check: PairSums, both: PairSums
) -> tuple[Tensor, Tensor]:
    """`P_Q, P_K (D, r)` of one head."""
    R = train.to_x.shape[-1]
    joint_map = torch.eye(R, dtype=torch.float64)[:, :rank]
    fit, held = train.quadratic(head), check.quadratic(head)
    best, least = 1.0, held(joint_map @ joint_map.T)
    for share in SHARES:
        A, B = alternate(fit.mixed(ridge, share), joint_map)
        if (found := held(A @ B.T)) < least:
            best, least = share, found
    A = B = joint_map
    if best < 1:
        A, B = alternate(both.quadratic(head).mixed(ridge, best), joint_map)
    return train.to_x[head] @ A.to(train.to_x), train.to_y[head] @ B.to(train.to_y)


def alternate(f: Quadratic, start: Tensor) -> tuple[Tensor, Tensor]:
    """Make `A, B (R, r)` best for each other in turn; f never rises."""
    A = B = start
    for _ in range(ROUNDS):
        A = _solve(torch.einsum("abcd,cp,dq->apbq", f.four, B, B), f.linear @ B)
        B = _solve(torch.einsum("abcd,ap,bq->cpdq", f.four, A, A), f.linear.T @ A)
    return A, B


def _solve(four: Tensor, right: Tensor) -> Tensor:
    """X (R, r) with `Σ_bq four_apbq X_bq = right_ap`, of positive semidefinite equations."""
    matrix = four.reshape(right.numel(), right.numel())
    matrix = (matrix + matrix.T) / 2
    # a head of constant scores has no equations at all
    floor = 1e-10 * matrix.diagonal().mean() + torch.finfo(matrix.dtype).tiny
    matrix.diagonal().add_(floor)
    return torch.cholesky_solve(right.reshape(-1, 1), torch.linalg.cholesky(matrix)).view_as(right)
