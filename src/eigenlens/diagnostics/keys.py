"""Keys that are explained away: tokens to which no query pays attention (arXiv 2009.14308)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..attention.doubly_normalised import balanced
from ..captures import AttentionCall
from ..display import percent
from ..errors import EigenlensError
from .diagnostic import CallView, Diagnostic, LayerView, field_by_site
from .finding import Finding

BINS = (-30.0, 2.0, 128)
"""Of the histogram of log₁₀ of keys' weights: from, to, number.

What lies outside is in the first and the last.
"""
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
            raise EigenlensError(
                f"a key is explained away below a weight between 0 and 1, not tau = {self.tau}"
            )


class Keys(Diagnostic):
    """`w_j = S · Σ_{i sees j} A_ij / #{i sees j}`, the weight of key j among S.

    It is 1 on average where there is no mask.

    Of T = S tokens without a mask that is the sum of column j. Under a causal mask early keys are
    seen by more queries than late ones: hence S times the mean. Normalised over queries before
    keys, every column sums to at least 1/S, which is a weight of 1/T; that pattern is made of the
    same scores where no mask is causal, of the expensive inputs of a call only.

    Kept besides: the least weight over all inputs, for each stack a histogram of log₁₀ w, (2,
    bins), and the share below tau under softmax of those inputs that are normalised twice, (H, 2),
    so that the two can be compared.
    """

    name = "keys"
    title = "Keys explained away"
    sees = "calls"
    level = "head"
    numbers: ClassVar = {
        "below": "share of keys with a weight below tau",
        "below_uniform": "share of keys with a weight below 1/T, T queries",
        "least": "least weight of a key, mean over inputs",
        "balanced_below": "share of keys below tau, doubly normalised",
        "balanced_below_uniform": "share of keys with a weight below 1/T, doubly normalised",
        "balanced_least": "least weight of a key, doubly normalised",
    }
    Settings = KeySettings

    @torch.no_grad()
    def update(self, seen: CallView | LayerView) -> None:
        assert isinstance(seen, CallView)
        weights = key_weights(seen.received, seen.seen_by)
        real = (seen.seen_by > 0).expand_as(weights)
        values = weights.new_full((len(weights), 6, weights.shape[1]), torch.nan)
        queries = seen.allowed.any(3).sum(2)  # (B or 1, H or 1)
        values[:, :3] = self._shares(weights, real, queries)
        # (2, H)
        least = torch.stack(
            [_least(weights, real).amin(0), weights.new_full(weights.shape[1:2], torch.inf)]
        )
        spread = torch.stack([histogram(weights[real]), weights.new_zeros(BINS[2])])
        sampled = seen.sampled_inputs
        allowed = seen.allowed if len(seen.allowed) == 1 else seen.allowed[sampled]
        sampled = sampled[_rectangular(allowed).expand(len(sampled))]
        if len(sampled) and seen.call.sinks is None:
            weights, real = balanced_weights(seen.call.of_inputs(sampled))
            values[sampled, 3:] = self._shares(
                weights, real, queries.expand(len(values), -1)[sampled]
            )
            least[1], spread[1] = _least(weights, real).amin(0), histogram(weights[real])
            beside = values[sampled, 0]  # (b, H)
            there = ~beside.isnan()
            self.add(
                f"{seen.site}/beside", torch.stack([there.sum(0), beside.nan_to_num().sum(0)], 1)
            )
        self.count(seen.site, values)
        self.peak(f"{seen.site}/least", -least)
        self.add(f"{seen.call.site.stack}/histogram", spread)

    def _shares(self, weights: Tensor, real: Tensor, queries: Tensor) -> Tensor:
        """Shares below tau and 1/T, and the least, of weights (B, H, S): (B, 3, H).

        NaN for an input of fewer than 2 keys.
        """
        S = real.sum(2)  # (B, H)
        shares = [
            below_threshold(weights, real, t)
            for t in (self.settings.tau, 1 / queries.clamp_min(1)[..., None])
        ]
        found = torch.stack(
            [
                *(x.sum(2, dtype=torch.float64) / S.clamp_min(1) for x in shares),
                _least(weights, real),
            ],
            1,
        )
        return found.masked_fill((S < 2)[:, None], torch.nan)

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        rows = []
        for stack in finding.stacks:
            least = torch.stack(
                [-x for site, x in field_by_site(self.peaks, "least") if site.stack == stack]
            ).amin((0, 2))
            for at, normalised in enumerate(NORMALISED):
                some = [
                    finding.values(name, stack) for name in list(self.numbers)[3 * at : 3 * at + 2]
                ]
                if some[0]:
                    below, uniform = (sum(values.values()) / len(values) for values in some)
                    name = list(self.numbers)[3 * at]
                    inputs = max(
                        n.number for n in finding.numbers if n.name == name and n.stack == stack
                    )
                    rows.append(
                        {
                            "stack": stack,
                            "normalised": normalised,
                            "heads": len(some[0]),
                            "inputs": inputs,
                            "below tau": below,
                            "below 1/T": uniform,
                            "least weight": float(least[at]),
                        }
                    )
        return {"Keys explained away, over heads and inputs": rows}

    def sentence(self, finding: Finding) -> str:
        below = finding.values("below")
        mean, most = sum(below.values()) / len(below), max(below, key=lambda at: below[at])
        less = f"less than {self.settings.tau:g} of an even share of attention"
        if not below[most] > 0:
            return f"No key gets {less}" + (
                f" in any of {len(below)} heads." if len(below) > 1 else " in the only head."
            )
        beside, where = self._beside(finding), finding.labels(most)
        if len(below) == 1:
            return f"In the only head, {where}, {percent(mean, 1)} of the keys get {less}{beside}."
        return (
            f"On average over heads {percent(mean, 1)} of the keys get {less}{beside}; most in"
            f" {where}, with {percent(below[most])}."
        )

    def _beside(self, finding: Finding) -> str:
        """What the double normalisation would do to the same heads and inputs."""
        balanced = finding.of_heads("balanced_below")
        if not balanced:
            return ""
        # (2,) each
        sums = [self.sums[f"{at.site}/beside"][at.head] for at in balanced]
        same = [float(shares / inputs) for inputs, shares in sums]
        heads = (
            ""
            if len(balanced) == len(finding.values("below"))
            else f" in the {len(balanced)} heads where no mask is causal"
        )
        return (
            "; normalised over queries first it would be"
            f" {percent(sum(balanced.values()) / len(balanced), 1)} and not"
            f" {percent(sum(same) / len(same), 1)}{heads}, on the inputs where both were measured"
        )


def key_weights(received: Tensor, seen_by: Tensor) -> Tensor:
    """Weights (B, H, S) of keys from what they get on average (B, H, S); 0 for padding.

    And from how many queries see them.
    """
    return received * (seen_by > 0).sum(2, keepdim=True)


def balanced_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Weights (B, H, S) of a call's keys, doubly normalised, and which are no padding.

    A few heads at a time.
    """
    B, H, T, _ = call.q.shape
    S = call.k.shape[2]
    size = max(1, PAIRS // (B * T * S))
    seen_by = call.valid().sum(2).expand(B, H, S)
    parts = [
        balanced(call.of_heads(range(h, min(h + size, H))).scores()).sum(2, dtype=torch.float64)
        for h in range(0, H, size)
    ]
    return key_weights(torch.cat(parts, 1) / seen_by.clamp_min(1), seen_by), seen_by > 0


def below_threshold(weights: Tensor, real: Tensor, threshold: float | Tensor) -> Tensor:
    """Which keys have a weight below a threshold, not by rounding alone, (B, H, S) bool."""
    return (weights < threshold * (1 - ROUNDING)) & real


def histogram(weights: Tensor) -> Tensor:
    """How many weights of any shape fall into each bin of log₁₀, (bins,) float64."""
    low, high, bins = BINS
    return torch.histc(weights.clamp_min(10.0**low).log10().clamp(low, high), bins, low, high)


def _rectangular(allowed: Tensor) -> Tensor:
    """Of which inputs every query that is no padding sees every key that is none, (B or 1,) bool.

    The call's own `mask_shape` says it of all inputs at once, so that it would matter which of them
    stand in a batch.
    """
    return (
        (allowed == (allowed.any(3, keepdim=True) & allowed.any(2, keepdim=True))).flatten(1).all(1)
    )


def _least(weights: Tensor, real: Tensor) -> Tensor:
    """(B, H): the least weight of a key; ∞ where there is none."""
    return weights.masked_fill(~real, torch.inf).amin(2)
