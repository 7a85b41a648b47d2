"""Compute all pairs: what estimators are compared with, and what the hardest heads get."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from ..captures import AttentionCall
from .estimator import Cost, Estimate, Estimator, SiteStatistics, static_estimate


class Exact(Estimator):
    """`s_ij = q_i·k_j`, `n²d` multiply-adds."""

    name = "exact"
    needs: ClassVar[tuple[str, ...]] = ()
    breaks_even = "never: it is the exact scores"

    @classmethod
    def fit(cls, statistics: SiteStatistics, **_: Any) -> Self:
        return cls({}, {})

    def estimate(self, call: AttentionCall) -> Estimate:
        return static_estimate(call.raw_scores(), call, self.cost(call.k.shape[2], call.q.shape[3]))

    def cost(self, n: int, d: int) -> Cost:
        return Cost(pairs=1.0, per_pair=n * n * d)
