"""Keys that are explained away: tokens to which no query pays attention (arXiv 2009.14308)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..attention.doubly_normalised import balanced
from ..capture import AttentionCall, Site
from ..errors import EigenlensError
from .diagnostic import Diagnostic, Seen, SeenLayer
from .finding import Finding, place_name

BINS = (-30.0, 2.0, 128)
"""Of the histogram of log₁₀ of keys' weights: from, to, number; what lies outside is in the first and the last."""
NORMALISED = ("softmax", "doubly normalised")
ROUNDING = 1e-6
"""Of a threshold: a weight that is below it by less is rounding."""
PAIRS = 2**24
"""Pairs of queries and keys whose doubly normalised pattern is held at once."""


@dataclass(frozen=True)
class KeySettings:
    """`tau`: a key whose weight, 1 on average, is below this is explained away."""

    tau: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.tau < 1:
            raise EigenlensError(f"a key is explained away below a weight between 0 and 1, not tau = {self.tau}")


class Keys(Diagnostic):
    """`w_j = S · Σ_{i sees j} A_ij / #{i sees j}`: the weight of key j among S, 1 on average where there is no mask.

    Of T = S tokens without a mask that is the sum of column j. Under a causal mask early keys are seen by more queries than
    late ones: hence S times the mean. Normalised over queries before keys, every column sums to at least 1/S, which is a
    weight of 1/T; that pattern is made of the same scores where no mask is causal, of the first input of each call only.

    Kept besides: the least weight over all inputs, and for each stack a histogram of log₁₀ w, (2, bins).
    """

    name = "keys"
    title = "Keys explained away"
    sees = "calls"
    level = "head"
    numbers: ClassVar = {
        "below": "share of keys with a weight below tau",
        "below_uniform": "share of keys whose column sums to less than 1/S",
        "least": "least weight of a key, mean over inputs",
        "balanced_below": "share of keys below tau, doubly normalised",
        "balanced_below_uniform": "share of columns below 1/S, doubly normalised",
        "balanced_least": "least weight of a key, doubly normalised",
    }
    Settings = KeySettings

    @torch.no_grad()
    def update(self, seen: Seen | SeenLayer) -> None:
        assert isinstance(seen, Seen)
        real = seen.seen_by > 0  # (B or 1, H or 1, S)
        weights, real = real.sum(2, keepdim=True) * seen.received, real.expand_as(seen.received)
        values = weights.new_full((len(weights), 6, weights.shape[1]), torch.nan)
        queries = seen.allowed.any(3).sum(2)  # (B or 1, H or 1)
        values[:, :3] = self._shares(weights, real, queries)
        least = torch.stack([_least(weights, real).amin(0), weights.new_full(weights.shape[1:2], torch.inf)])  # (2, H)
        spread = torch.stack([histogram(weights[real]), weights.new_zeros(BINS[2])])
        first = seen.call.of_inputs(slice(0, 1))
        if _rectangular(first) and first.sinks is None:
            weights, real = balanced_weights(first)
            values[:1, 3:] = self._shares(weights, real, queries[:1])
            least[1], spread[1] = _least(weights, real).amin(0), histogram(weights[real])
        self.count(seen.site, values)
        self.peak(f"{seen.site}/least", -least)
        self.add(f"{seen.call.site.stack}/histogram", spread)

    def _shares(self, weights: Tensor, real: Tensor, queries: Tensor) -> Tensor:
        """Shares below tau and 1/T, and the least, of weights (B, H, S): (B, 3, H); NaN of an input of fewer than 2 keys."""
        S = real.sum(2)  # (B, H)
        shares = [below(weights, real, t) for t in (self.settings.tau, 1 / queries.clamp_min(1)[..., None])]
        found = torch.stack([*(x.sum(2) / S.clamp_min(1) for x in shares), _least(weights, real)], 1)
        return found.masked_fill((S < 2)[:, None], torch.nan)

    def tables(self, finding: Finding, tokens: Mapping[int, str]) -> dict[str, list[dict[str, Any]]]:
        rows = []
        for stack in finding.stacks:
            least = torch.stack([-x for name, x in self.peaks.items() if _stack(name, "/least") == stack]).amin((0, 2))
            for at, normalised in enumerate(NORMALISED):
                some = [finding.values(name, stack) for name in list(self.numbers)[3 * at : 3 * at + 2]]
                if some[0]:
                    below, uniform = (sum(values.values()) / len(values) for values in some)
                    rows.append({"stack": stack, "normalised": normalised, "below tau": below, "below 1/S": uniform,
                                 "least weight": float(least[at])})  # fmt: skip
        return {"Keys explained away, over heads and inputs": rows}

    def sentence(self, finding: Finding) -> str:
        below = finding.values("below")
        mean, most = sum(below.values()) / len(below), max(below, key=lambda place: below[place])
        balanced = finding.values("balanced_below")
        beside = f"; normalised over queries first it would be {sum(balanced.values()) / len(balanced):.1%}" if balanced else ""
        return (
            f"On average over heads {mean:.1%} of the keys get less than {self.settings.tau:g} of an even share of attention"
            f"{beside}; most in {place_name(most)}, with {below[most]:.0%}."
        )


def key_weights(A: Tensor, allowed: Tensor) -> Tensor:
    """Weights (B, H, S) float64 of the keys of a pattern (B, H, T, S), and where a query may look; 0 of padding."""
    seen = allowed.sum(2)  # how many queries see each key
    return A.sum(2, dtype=torch.float64) / seen.clamp_min(1) * (seen > 0).sum(2, keepdim=True)


def balanced_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Weights (B, H, S) of a call's keys, doubly normalised, and which are no padding; a few heads at a time."""
    B, H, T, _ = call.q.shape
    S = call.k.shape[2]
    size = max(1, PAIRS // (B * T * S))
    real = call.valid().any(2).expand(B, H, S)
    parts = [
        balanced(call.of_heads(range(h, min(h + size, H))).scores()).sum(2, dtype=torch.float64) for h in range(0, H, size)
    ]
    queries = call.valid().any(3).sum(2)  # (B or 1, H or 1)
    return torch.cat(parts, 1) / queries[..., None].clamp_min(1) * real.sum(2, keepdim=True), real


def below(weights: Tensor, real: Tensor, threshold: float | Tensor) -> Tensor:
    """Which keys have a weight below a threshold, not by rounding alone, (B, H, S) bool."""
    return (weights < threshold * (1 - ROUNDING)) & real


def histogram(weights: Tensor) -> Tensor:
    """How many weights of any shape fall into each bin of log₁₀, (bins,) float64."""
    low, high, bins = BINS
    return torch.histc(weights.clamp_min(10.0**low).log10().clamp(low, high), bins, low, high)


def _rectangular(call: AttentionCall) -> bool:
    """Whether every query that is no padding sees every key that is none."""
    valid = call.valid()
    return bool((valid == (valid.any(3, keepdim=True) & valid.any(2, keepdim=True))).all())


def _least(weights: Tensor, real: Tensor) -> Tensor:
    """(B, H): the least weight of a key; ∞ where there is none."""
    return weights.masked_fill(~real, torch.inf).amin(2)


def _stack(name: str, end: str) -> str | None:
    return Site.parse(name.removesuffix(end)).stack if name.endswith(end) else None
