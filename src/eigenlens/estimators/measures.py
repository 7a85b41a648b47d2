"""How far estimated scores are from the true ones, per head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from ..captures import AttentionCall
from .estimator import Estimate


@dataclass(eq=False)
class Truth:
    """Scores, pattern and output of a call, computed once for all estimates compared with it."""

    call: AttentionCall

    @cached_property
    def scores(self) -> Tensor:
        """True scores, zero at pairs that do not count, (B, H, T, S)."""
        return self.call.scores(fill=0.0)

    @cached_property
    def pattern(self) -> Tensor:
        return self.call.pattern()

    @cached_property
    def output(self) -> Tensor:
        """(B, H, T, E)."""
        return self.pattern @ self.call.values

    @cached_property
    def rows(self) -> Tensor:
        """The queries that count, (B or 1, H or 1, T)."""
        return self.call.valid().any(-1)

    @cached_property
    def number(self) -> Tensor:
        """The number of rows of each head, (H,)."""
        rows = self.rows.sum((0, 2)) * (len(self.call.q) // self.rows.shape[0])
        return rows.expand(self.call.heads).double()

    @cached_property
    def squares(self) -> Tensor:
        """The sum of the squared scores of each head, (H,)."""
        return self.scores.square().sum((0, 2, 3)).double()

    @cached_property
    def sums(self) -> Tensor:
        """The sum of the scores with each key, (H, S)."""
        return self.scores.sum((0, 2)).double()

    @cached_property
    def pairs(self) -> Tensor:
        """How often each key counts, (H, S)."""
        valid = self.call.valid().sum((0, 2)) * (len(self.call.q) // self.rows.shape[0])
        return valid.expand(self.call.heads, -1).double()


@dataclass
class Sums:
    """Sums by name, of each head `(H, …)`; existing tensors are never changed in place."""

    sums: dict[str, Tensor] = field(default_factory=dict)

    def take(self, found: Mapping[str, Tensor]) -> None:
        """Add to every sum."""
        self.sums = self.sums | {
            name: self.sums[name] + x if name in self.sums else x for name, x in found.items()
        }

    def merge(self, other: Self) -> None:
        """Add what another instance has seen."""
        self.take(other.sums)


class Errors(Sums):
    """Sums over rows and inputs, per head `(H,)`; the properties are their means.

    score error: squared error of the scores, divided by their variance about the mean of each key
    position. total variation: `½ Σ_j |p̂_ij − p_ij|`. KL: `Σ_j p_ij log(p_ij / p̂_ij)`. top-1: how
    often the largest entry is the same. output error: `‖(P̂ − P)V‖ / ‖PV‖` over all rows.
    """

    @torch.no_grad()
    def add(self, truth: Truth, estimate: Estimate, all_measures: bool = True) -> None:
        """Add one call.

        Without `all_measures` only score error and total variation, which cost a few passes over
        the pairs.
        """
        call = truth.call
        pattern = call.pattern_of(estimate.scores)
        number = truth.number.sum() / call.heads
        found = {
            "rows": truth.number,
            "pairs": estimate.pairs.double() * number,
            "work": estimate.work.double() * number,
            "squared": (
                call.masked(estimate.scores - truth.scores, fill=0.0)
                .square_()
                .sum((0, 2, 3))
                .double()
            ),
            "variation": (pattern - truth.pattern).abs_().sum((0, 2, 3)).double() / 2,
            "score_squares": truth.squares,
            "score_sums": truth.sums,
            "score_counts": truth.pairs,
        }
        if all_measures:
            rows = truth.rows.expand(len(call.q), call.heads, call.q.shape[2])
            tiny = torch.finfo(pattern.dtype).tiny
            logs = (truth.pattern.clamp_min(tiny).log() - pattern.clamp_min(tiny).log()).mul_(
                truth.pattern
            )
            same = (pattern.argmax(-1) == truth.pattern.argmax(-1)) & rows
            output = pattern @ call.values
            found |= {
                "divergence": logs.sum((0, 2, 3)).double(),
                "same": same.sum((0, 2)).double(),
                "output_squared": (
                    ((output - truth.output) * rows[..., None]).square().sum((0, 2, 3)).double()
                ),
                "output_squares": (truth.output * rows[..., None]).square().sum((0, 2, 3)).double(),
            }
        self.take(found)

    def _mean(self, name: str) -> Tensor:
        return self.sums[name] / self.sums["rows"].clamp_min(1)

    @property
    def total_variation(self) -> Tensor:
        return self._mean("variation")

    @property
    def kl(self) -> Tensor:
        return self._mean("divergence")

    @property
    def top_1(self) -> Tensor:
        return self._mean("same")

    @property
    def pairs(self) -> Tensor:
        return self._mean("pairs")

    @property
    def work(self) -> Tensor:
        return self._mean("work")

    @property
    def score_error(self) -> Tensor:
        """Return the error, 0 for a head whose scores never vary."""
        means = self.sums["score_sums"].square() / self.sums["score_counts"].clamp_min(1)
        variance = self.sums["score_squares"] - means.sum(1)
        floor = 1e-9 * self.sums["score_squares"]
        return torch.where(
            variance > floor,
            self.sums["squared"] / variance.clamp_min(1e-30),
            torch.zeros_like(variance),
        )

    @property
    def output_error(self) -> Tensor:
        return (self.sums["output_squared"] / self.sums["output_squares"].clamp_min(1e-30)).sqrt()
