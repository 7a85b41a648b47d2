"""Every estimator at every budget: what a plan chooses from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EigenlensError
from ..names import split_names, unknown_name
from .adaptive import Cascade, default_ranks
from .estimator import Estimator, SiteStatistics
from .exact import Exact
from .fitted import FittedSubspace
from .landmarks import Landmarks
from .matrices import MatrixConditional
from .rows import RowConditional, RowLeastSquares, RowMean
from .subspace import GroupedSubspace, JointSubspace, KeySubspace

ESTIMATORS: dict[str, type[Estimator]] = {
    kind.name: kind
    for kind in (
        RowMean,
        RowLeastSquares,
        RowConditional,
        MatrixConditional,
        Landmarks,
        KeySubspace,
        JointSubspace,
        GroupedSubspace,
        FittedSubspace,
        Cascade,
        Exact,
    )
}
BUDGETS = (0.05, 0.10, 0.25, 0.50)
"""The shares at which every estimator is measured: of the pairs it chooses, else of coordinates."""


@dataclass(frozen=True)
class Candidate:
    """An estimator at a nominal budget (None if it has no choice); `fit` makes it for a site."""

    name: str
    budget: float | None
    fit: Callable[[SiteStatistics], Estimator]


def static_candidates(names: Iterable[str], budgets: Sequence[float], seed: int) -> list[Candidate]:
    """Yield the estimators whose cost is known before an input is seen, at each budget."""
    found = []
    for name in names:
        if name in {RowMean.name, Exact.name}:
            found.append(Candidate(name, None, ESTIMATORS[name].fit))
        elif name != Cascade.name:
            found += [
                Candidate(name, budget, _at(ESTIMATORS[name], budget, seed)) for budget in budgets
            ]
    return found


def _at(kind: type[Estimator], budget: float, seed: int) -> Callable[[SiteStatistics], Estimator]:
    def fit(statistics: SiteStatistics) -> Estimator:
        return kind.fit(statistics, **settings_at(kind, budget, statistics, seed))

    return fit


def settings_at(
    kind: type[Estimator], budget: float, statistics: SiteStatistics, seed: int
) -> dict[str, Any]:
    """Return the settings that spend a budget.

    Keys, pairs or landmarks are a share of their number, coordinates of the head dimension.
    """
    if kind in {JointSubspace, GroupedSubspace, FittedSubspace, KeySubspace}:
        return {"rank": max(1, round(budget * statistics.dimension))}
    if kind is Landmarks:  # m rows and m columns hold 1 − (1 − m/n)² of the pairs
        size = min(statistics.keys, statistics.queries)
        return {
            "landmarks": max(1, round(size * (1 - math.sqrt(1 - min(budget, 1.0))))),
            "seed": seed,
        }
    # greedy rules on n² pairs take seconds per layer, and gain little with 16 eigenvectors
    if kind is MatrixConditional:
        return {"share": budget, "rule": "random", "seed": seed}
    return {"share": budget, "seed": seed}


def cascade(statistics: SiteStatistics, small: bool) -> Cascade:
    """Return the coordinates of a site's cascade; a `small` budget begins with fewer of them."""
    ranks = default_ranks(statistics.dimension)
    if small:
        ranks = tuple(sorted({max(1, statistics.dimension // 32), *ranks[1:]}))
    return Cascade.fit(statistics, ranks=ranks)


def chosen_names(given: str | Sequence[str] | None) -> list[str]:
    """Return the estimators asked for; by default all but `joint-fitted`.

    Fitting it reads more inputs and solves equations for every head.
    """
    if given is None:
        return [name for name in ESTIMATORS if name != FittedSubspace.name]
    if not (names := split_names(given)):
        raise EigenlensError(
            f"no estimator is left to choose from; the estimators are {', '.join(ESTIMATORS)}"
        )
    for name in names:
        if name not in ESTIMATORS:
            raise unknown_name("estimator", name, ESTIMATORS)
    return names
