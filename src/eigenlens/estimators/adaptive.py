"""A cheap estimate of every pair, and more work only where it can change the pattern."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from ..captures import AttentionCall
from ..errors import EigenlensError
from .estimator import Cost, Estimate, SiteStatistics
from .rotation import joint
from .subspace import Rotated

EARLIER = (0.5, 0.6, 0.8, 1.0)
"""Earlier stages use a lower threshold, because their estimate of a weight is rougher."""
HALF_VARIANCE = 0.25
"""The factor of σ² in the correction for the error ε of a score.

`E[exp ε] = exp(σ²/2)`; half of that is best on real heads, whose errors have lighter tails.
"""
MOST_VARIANCE = 6.0


class Cascade(Rotated):
    """Scores in stages: r₁ coordinates for all pairs, r₂ for those that matter, …, d for the most.

    In the joint coordinates a score is a sum whose first terms are the largest, so a stage only
    adds the next coordinates: nothing is computed twice, and a pair that passes every stage ends
    with its exact score. After r of d coordinates the error of pair (i, j) has about the variance

        σ²_ij = ‖x_i,>r‖² ‖y_j,>r‖² / (d − r)

    known from norms that cost O(nd). With the pattern p of the estimates so far, `p_ij σ_ij` is how
    much the pair may still change its row; the pair passes if that is more than `threshold`. One
    threshold for all heads, layers and inputs spends the work where it helps most. A pair that does
    not pass keeps its estimate, raised by `σ²/4` for the mean of an exponential.

    Cost: `n²(r₁ + Σ_s f_s (r_{s+1} − r_s))` for shares f_s that pass; `2nd²` for the rotation,
    which a model without rotary embedding can include in its weights. Break-even: the work for
    pairs is always below `n²d`; the threshold decides by how much. With the rotation, `Σ < d −
    2d²/n`.
    """

    name = "adaptive"
    breaks_even = (
        "for pairs always; with the rotation if the share of the pairs' work is below 1 − 2d/n"
    )

    @classmethod
    def fit(
        cls,
        statistics: SiteStatistics,
        threshold: float = 0.002,
        ranks: tuple[int, ...] | None = None,
        **_: Any,
    ) -> Self:
        D = statistics.dimension
        chosen = tuple(ranks) if ranks is not None else default_ranks(D)
        if list(chosen) != sorted({*chosen}) or not chosen or chosen[0] < 1 or chosen[-1] >= D:
            raise EigenlensError(
                "the ranks of a cascade must rise from at least 1 to below the head dimension"
                f" {D}, not {chosen}"
            )
        if not threshold > 0:
            raise EigenlensError(f"the threshold of a cascade must be above 0, not {threshold}")
        return cls(
            {"threshold": threshold, "ranks": list(chosen)},
            cls._tensors(statistics, joint, D, tail=True),
        )

    def with_threshold(self, threshold: float) -> Self:
        """Return the same coordinates with another threshold."""
        return type(self)({**self.settings, "threshold": threshold}, self.tensors, self._tails)

    def estimate(self, call: AttentionCall) -> Estimate:
        x, y, constant = self.coordinates(call)
        D, ranks = x.shape[-1], [*self.settings["ranks"], x.shape[-1]]
        valid = call.valid()  # (B or 1, H or 1, T, S)
        # valid pairs of each head
        number = valid.sum((0, 2, 3)).expand(call.heads) * (len(call.q) // valid.shape[0])
        passed: Tensor | None = None  # all pairs
        products = x[..., : ranks[0]] @ y[..., : ranks[0]].mT  # the sum so far, of every pair
        scores = self._with_tail(products, ranks[0], call)
        work = torch.full((call.heads,), ranks[0] / D, device=x.device)
        share = torch.zeros(call.heads, device=x.device)
        for stage, (r, more) in enumerate(zip(ranks, ranks[1:])):
            # σ² (B, H, T, S)
            ahead = _norms(x[..., r:])[..., :, None] * (_norms(y[..., r:]) / (D - r))[..., None, :]
            raised = torch.addcmul(
                scores, ahead.clamp(max=MOST_VARIANCE), ahead.new_tensor(HALF_VARIANCE)
            )
            scores = raised if passed is None else torch.where(passed, raised, scores)
            with torch.no_grad():  # which pairs pass is no function to differentiate
                weight = call.pattern_of(call.shaped(scores + constant)).mul_(ahead.sqrt())
                moves = weight > self.settings["threshold"] * EARLIER[min(stage, len(EARLIER) - 1)]
                moves &= valid
            passed = moves if passed is None else passed & moves
            share = passed.sum((0, 2, 3)) / number.clamp_min(1)
            work = work + share * (more - r) / D
            products = torch.baddbmm(
                products.flatten(0, 1),
                x[..., r:more].flatten(0, 1),
                y[..., r:more].flatten(0, 1).mT,
            ).view_as(products)
            scores = torch.where(passed, self._with_tail(products, more, call), scores)
        return Estimate(call.shaped(scores + constant), share, work)

    def _with_tail(self, products: Tensor, rank: int, call: AttentionCall) -> Tensor:
        tail = self.tail(rank, call) if rank < self.tensors["to_x"].shape[-1] else None
        return products.clone() if tail is None else products + tail

    def cost(self, n: int, d: int) -> Cost:
        """The cost of the first stage alone.

        The cost of the others depends on the input and is measured by `estimate`.
        """
        return Cost(
            pairs=0.0,
            per_pair=n * n * self.settings["ranks"][0],
            per_token=2 * n * d * d + n * d,
            cached=d,
        )


def default_ranks(dimension: int) -> tuple[int, ...]:
    """Return 1/16, 1/8, 1/4 and 1/2 of the head dimension."""
    return tuple(sorted({max(1, dimension // part) for part in (16, 8, 4, 2)} - {dimension}))


def _norms(x: Tensor) -> Tensor:
    """Return `‖x‖²` along the last axis."""
    return x.square().sum(-1)
