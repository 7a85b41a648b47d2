"""Choosing a form for every head: the least error for its seconds, or within a budget of pairs.

At a price λ every head takes its own `argmin error + λ · seconds`. Prices from low to high give a
family of plans from exact to fast, each of which no other allocation on the hulls of the heads'
curves beats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..captures import Site
from ..errors import EigenlensError
from .calibration import CHOOSING, DENSE, GATHERED, NEAR, RANKED, Calibration
from .choose import on_hull
from .menu import Tried
from .result import Choice
from .sparse_plan import SparsePlan

PRICES = 240
NOTHING = (
    "no attention of this model can be planned: it has other masks than causal and padding, or"
    " scores with a bias, a cap or sinks"
)


@dataclass(frozen=True)
class Candidate:
    """One plan of the family: an option per head, what it is expected to lose and to cost."""

    chosen: np.ndarray  # (N,) of all heads
    error: float
    seconds: float
    share: float


@dataclass
class Allocation:
    """The menus of all heads, with their seconds on this machine."""

    tried: dict[Site, Tried]
    calibrations: Mapping[int, Calibration]
    """By the width of heads."""

    def __post_init__(self) -> None:
        if not self.tried:
            raise EigenlensError(NOTHING)
        most = max(len(t.options) for t in self.tried.values())
        parts: dict[str, list[np.ndarray]] = {"error": [], "seconds": [], "share": []}
        for tried in self.tried.values():
            columns = {
                "error": tried.error.numpy(),
                "seconds": self._seconds(tried),
                "share": (tried.share / tried.inputs).clamp_max(1).numpy(),
            }
            missing = ((0, most - len(tried.options)), (0, 0))
            for name, x in columns.items():  # an option that a layer does not have is never chosen
                parts[name].append(np.pad(x, missing, constant_values=np.inf))
        self.error, self.seconds, self.share = (
            np.concatenate(parts[name], 1) for name in ("error", "seconds", "share")
        )  # (C, N)

    def _seconds(self, tried: Tried) -> np.ndarray:
        """Seconds of every option and head for one input, `(C, H)`."""
        known, rows = self.calibrations[tried.shape[0]], []
        per_pair = partial(self._per_pair, tried)
        attended = {
            "dense": per_pair(GATHERED if known.kernel else DENSE),  # without a kernel by torch
            "window": per_pair(NEAR),
            "blocks": per_pair(GATHERED),
            "ranked": per_pair(GATHERED),
            "pooled": per_pair(GATHERED),
        }
        choosing = {name: per_pair(CHOOSING) for name in ("blocks", "pooled")}
        choosing["ranked"] = per_pair(RANKED)
        for i, option in enumerate(tried.options):
            seconds = tried.pairs[i] * attended[option.kind]
            seconds = seconds + tried.sampled[i] * choosing.get(option.kind, 0.0)
            rows.append((seconds / tried.inputs).numpy())
        return np.stack(rows)

    @property
    def plain_seconds(self) -> float:
        """Seconds of torch's own attention for one input, by the calibration."""
        total = 0.0
        for t in self.tried.values():
            pairs = t.length**2 * (0.5 if t.causal else 1.0)
            total += self._per_pair(t, DENSE) * pairs * t.error.shape[1]
        return total

    def _per_pair(self, tried: Tried, form: str) -> float:
        """Seconds per pair of a head; it is measured where values are as wide as keys."""
        D, E = tried.shape
        seconds = self.calibrations[D].per_pair(form, tried.causal, tried.length)
        return seconds * (D + E) / (2 * D)

    def candidate(self, chosen: np.ndarray) -> Candidate:
        at = (chosen, np.arange(len(chosen)))
        return Candidate(
            chosen,
            float(self.error[at].sum()),
            float(self.seconds[at].sum()),
            float(self.share[at].mean()),
        )

    def family(self, most: int = 24) -> list[Candidate]:
        """Plans from the fastest to the exact one, at most so many, apart in their seconds."""
        error, seconds = self.error, self.seconds
        top = float(error[np.isfinite(error)].max()) + 1e-30
        least = float(seconds[np.isfinite(seconds)].min()) + 1e-30
        found: dict[bytes, Candidate] = {}
        for price in np.geomspace(1e-9 * top / least, 1e3 * top / least, PRICES):
            chosen = np.where(np.isfinite(error), error + price * seconds, np.inf).argmin(0)
            found.setdefault(chosen.tobytes(), self.candidate(chosen))
        exact = self.candidate(np.zeros(error.shape[1], dtype=int))
        kept: list[Candidate] = []
        faster = [c for c in found.values() if c.seconds < exact.seconds]
        ordered = sorted(faster, key=lambda c: c.seconds)
        if not ordered:
            return [exact]
        step = (math.log(exact.seconds) - math.log(ordered[0].seconds)) / most
        for c in ordered:
            if not kept or math.log(c.seconds) - math.log(kept[-1].seconds) >= step:
                kept.append(c)
        return [*kept, exact]

    def within_share(self, budget: float) -> Candidate:
        """The least error at a mean share of the pairs within a budget."""
        share = np.where(np.isfinite(self.share), self.share, 1e9)
        if (least := float(share.min(0).mean())) > budget:
            raise EigenlensError(
                f"blocks cannot stay within a budget of {budget:g} here, they take at least"
                f" {least:.3g}; raise the budget"
            )
        return self.candidate(
            on_hull(np.where(np.isfinite(self.error), self.error, 1e30), share, budget)
        )

    def plan(self, candidate: Candidate, length: int) -> SparsePlan:
        """The candidate as a plan."""
        layers, done = {}, 0
        for site, tried in self.tried.items():
            number = tried.error.shape[1]
            layers[site] = tried.forms(candidate.chosen[done : done + number].tolist())
            done += number
        expected = {
            "share": candidate.share,
            "error": candidate.error,
            "seconds": candidate.seconds,
            "plain_seconds": self.plain_seconds,
        }
        return SparsePlan(layers, length, expected)

    def choices(self, candidate: Candidate) -> tuple[Choice, ...]:
        """One choice per head, with why it was chosen."""
        rows, done = [], 0
        for site, tried in self.tried.items():
            forms = tried.forms(candidate.chosen[done : done + tried.error.shape[1]].tolist()).heads
            for head, form in enumerate(forms):
                i, column = int(candidate.chosen[done]), done
                share = float(self.share[i, column])
                rows.append(
                    Choice(
                        site.stack,
                        site.layer,
                        head,
                        form.kind,
                        _settings(form),
                        share,
                        share,
                        None,
                        None,
                        self._why(i, column),
                    )
                )
                done += 1
        return tuple(rows)

    def _why(self, chosen: int, column: int) -> str:
        milliseconds = 1e3 * self.seconds[chosen, column]
        dense = 1e3 * self.seconds[0, column]
        if not chosen:
            return f"dense, {dense:.3g} ms: no other form is worth its loss"
        return (
            f"expected effect on the task {self.error[chosen, column]:.3g}, {milliseconds:.3g} ms"
            f" instead of {dense:.3g} ms"
        )


def _settings(form: Any) -> dict[str, Any]:
    """The settings that matter for a form."""
    names = {
        "dense": (),
        "window": ("window",),
        "blocks": ("threshold", "window", "samples", "correction"),
        "ranked": ("threshold", "window", "samples", "rank", "correction"),
        "pooled": ("threshold", "window", "samples"),
    }[form.kind]
    return {name: getattr(form, name) for name in names}
