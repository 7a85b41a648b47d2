"""Fitting every candidate for every site, and measuring its cost and loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..captures import AttentionCall, Site
from ..errors import EigenlensError
from ..estimators.adaptive import Cascade
from ..estimators.candidates import BUDGETS, ESTIMATORS, Candidate, cascade, static_candidates
from ..estimators.estimator import Estimator, SiteStatistics
from ..estimators.exact import Exact
from ..estimators.measures import Errors, Truth
from ..estimators.subspace import GroupedSubspace, JointSubspace

SMALL = 0.1
"""Cascades for budgets below this begin with fewer coordinates.

The usual first stage alone would take most of such a budget.
"""
THRESHOLDS = tuple(float(t) for t in np.geomspace(3e-5, 0.1, 12))


class Trials:
    """The candidates, fitted for every site that has what they need."""

    def __init__(
        self,
        statistics: dict[Site, SiteStatistics],
        names: list[str],
        budget: float | None,
        seed: int,
    ) -> None:
        self.statistics, self.names, self.budget = statistics, names, budget
        budgets = sorted({*BUDGETS, *([budget] if budget is not None else [])})
        others = [name for name in names if name != Exact.name]
        # exact first: ties go to it
        self.candidates = static_candidates([Exact.name, *others], budgets, seed)
        self.fitted: dict[Site, list[Estimator | None]] = {site: [] for site in statistics}
        for candidate in self.candidates:
            self._fit(candidate)

    def _fit(self, candidate: Candidate) -> None:
        for site, known in self.statistics.items():
            kind = ESTIMATORS[candidate.name]
            lacks = any(getattr(known, name) is None for name in kind.needs) or (
                known.causal and not kind.causal
            )
            lacks = lacks or (kind is Cascade and known.dimension < 2)
            # the same as `joint` where no heads share their keys
            lacks = lacks or (
                kind is GroupedSubspace and known.group == 1 and JointSubspace.name in self.names
            )
            self.fitted[site].append(None if lacks else candidate.fit(known))

    @property
    def cascade_budgets(self) -> list[float]:
        mine = (
            []
            if self.budget is None
            else [self.budget * factor for factor in (0.4, 0.6, 0.8, 1.0, 1.3, 1.8, 2.5)]
        )
        return sorted(
            {
                *BUDGETS,
                *([0.15, 0.35, 0.7] if self.budget is None else [b for b in mine if b <= 0.95]),
            }
        )

    def add_cascades(self, work: Calibration) -> None:
        """Add a cascade per budget, with one threshold for all heads, layers and inputs."""
        for budget in self.cascade_budgets:
            threshold = work.threshold(budget)
            fit = partial(work.fitted, small=budget < SMALL, threshold=threshold)
            self.candidates.append(Candidate(Cascade.name, budget, fit))
            self._fit(self.candidates[-1])


class Calibration:
    """The work of cascades by threshold, over all sites, on a few fit inputs."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.bases: dict[tuple[Site, bool], Cascade] = {}
        self.work: dict[bool, list[np.ndarray]] = {False: [], True: []}  # for small budgets, True

    def fitted(self, known: SiteStatistics, small: bool, threshold: float) -> Cascade:
        """The cascade of a site; its coordinates are computed once for all thresholds."""
        if (known.site, small) not in self.bases:
            self.bases[known.site, small] = cascade(known, small)
        return self.bases[known.site, small].with_threshold(threshold)

    def sink(self, call: AttentionCall) -> None:
        known = self.trials.statistics[call.site]
        if known.dimension < 2:
            return
        for small, kept in self.work.items():
            works = [
                self.fitted(known, small, t).estimate(call).work.cpu().numpy() for t in THRESHOLDS
            ]
            kept.append(np.stack(works))  # (thresholds, H)

    def threshold(self, budget: float) -> float:
        """The threshold at which the mean work is the budget, by interpolation in its logarithm."""
        if not self.work[budget < SMALL]:  # no head is wide enough for a cascade
            return THRESHOLDS[0]
        found = np.concatenate(self.work[budget < SMALL], 1).mean(1)  # falls with the threshold
        return float(np.exp(np.interp(-budget, -found, np.log(THRESHOLDS))))


class Measured:
    """The errors of every candidate at every site."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.errors: dict[Site, list[Errors | None]] = {
            site: [None if e is None else Errors() for e in fitted]
            for site, fitted in trials.fitted.items()
        }

    def sink(self, call: AttentionCall) -> None:
        truth, site = Truth(call), call.site
        for i, estimator in enumerate(self.trials.fitted[site]):
            errors = self.errors[site][i]
            if estimator is None or errors is None:
                continue
            try:
                errors.add(truth, estimator.estimate(call), all_measures=False)
            except EigenlensError:  # it cannot serve inputs such as these
                self.errors[site][i] = None

    def table(self, what: str) -> np.ndarray:
        """One number (C, N) of all heads of all sites; infinite if a candidate cannot serve."""
        rows = []
        for site, found in self.errors.items():
            heads = self.trials.statistics[site].heads
            absent = np.full(heads, np.inf)
            rows.append(
                np.stack(
                    [
                        absent if e is None or not e.sums else getattr(e, what).cpu().numpy()
                        for e in found
                    ]
                )
            )
        return np.concatenate(rows, 1)

    def curve(self) -> list[dict[str, Any]]:
        """One row per candidate that serves everywhere: means over the heads."""
        tables = {
            what: self.table(what) for what in ("total_variation", "score_error", "work", "pairs")
        }
        rows = []
        for i, candidate in enumerate(self.trials.candidates):
            if np.isfinite(tables["total_variation"][i]).all():
                means = {what: round(float(table[i].mean()), 5) for what, table in tables.items()}
                median = round(float(np.median(tables["score_error"][i])), 5)
                rows.append(
                    {
                        "estimator": candidate.name,
                        "budget": candidate.budget,
                        **means,
                        "score_error_median": median,
                    }
                )
        return rows
