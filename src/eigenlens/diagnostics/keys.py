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
"""The histogram of log₁₀ of the keys' weights: from, to, number of bins.

Weights outside this range are counted in the first and the last bin.
"""
NORMALISED = ("softmax", "doubly normalised")
ROUNDING = 1e-6
"""A weight that is below a threshold by less than this is below it only by rounding."""
PAIRS = 2**24
"""How many pairs of queries and keys the doubly normalised pattern holds at once."""


@dataclass(frozen=True)
class KeySettings:
    """`tau`: a key with a weight below this is explained away; the average weight is 1."""

    tau: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.tau < 1:
            raise EigenlensError(
                "tau, the weight below which a key is explained away, must be between 0 and 1,"
                f" not {self.tau}"
            )


class Keys(Diagnostic):
    """Keys that get almost no attention: `w_j = S · Σ_{i sees j} A_ij / #{i sees j}`.

    w_j is the weight of key j among S keys. Without a mask it is 1 on average.

    For T = S tokens without a mask w_j is the sum of column j. Under a causal mask more queries see
    early keys than late ones: hence S times the mean. If the pattern is normalised over queries
    first and over keys then, every column sums to at least 1/S, which is a weight of 1/T; that
    pattern is computed from the same scores where no mask is causal, for the expensive inputs only.

    It also keeps: the least weight over all inputs; for each stack a histogram of log₁₀ w, (2,
    bins); and the share below tau under softmax for the inputs that are normalised twice, (H, 2),
    so that the two can be compared.
    """

    name = "keys"
    title = "Keys explained away"
    sees = "calls"
    level = "head"
    numbers: ClassVar = {
        "below": "share of keys with a weight below tau",
        "below_uniform": "share of keys with a weight below 1/T, for T queries",
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
        """Return the shares below tau and 1/T, and the least weight: (B, H, S) → (B, 3, H).

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
        less = (
            f"less than {self.settings.tau:g} of the attention that uniform attention would give"
            " them"
        )
        if not below[most] > 0:
            return f"No keys get {less}" + (
                f" in any of {len(below)} heads." if len(below) > 1 else " in the only head."
            )
        beside, where = self._beside(finding), finding.labels(most)
        if len(below) == 1:
            return f"In the only head, {where}, {percent(mean, 1)} of the keys get {less}{beside}."
        return (
            f"On average over heads, {percent(mean, 1)} of the keys get {less}; the share is"
            f" largest in {where} ({percent(below[most])}){beside}."
        )

    def _beside(self, finding: Finding) -> str:
        """Say what double normalisation would do to the same heads and inputs."""
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
            ". Normalised over queries first, the share would be"
            f" {percent(sum(balanced.values()) / len(balanced), 1)} instead of"
            f" {percent(sum(same) / len(same), 1)}{heads}, on the inputs where both were measured"
        )


def key_weights(received: Tensor, seen_by: Tensor) -> Tensor:
    """Return the weights (B, H, S) of keys; 0 for padding.

    `received` (B, H, S) is what each key gets on average, `seen_by` how many queries see it.
    """
    return received * (seen_by > 0).sum(2, keepdim=True)


def balanced_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Return the doubly normalised weights (B, H, S) of a call's keys, and which are not padding.

    Computed for a few heads at a time.
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
    """Return which keys have a weight below a threshold, beyond rounding, (B, H, S) bool."""
    return (weights < threshold * (1 - ROUNDING)) & real


def histogram(weights: Tensor) -> Tensor:
    """Return how many weights of any shape fall into each bin of log₁₀, (bins,) float64."""
    low, high, bins = BINS
    return torch.histc(weights.clamp_min(10.0**low).log10().clamp(low, high), bins, low, high)


def _rectangular(allowed: Tensor) -> Tensor:
    """Return in which inputs every real query sees every real key, (B or 1,) bool.

    Real means not padding. The call's own `mask_shape` holds for all inputs of a batch at once, so
    it would depend on which inputs are in the batch.
    """
    return (
        (allowed == (allowed.any(3, keepdim=True) & allowed.any(2, keepdim=True))).flatten(1).all(1)
    )


def _least(weights: Tensor, real: Tensor) -> Tensor:
    """Return the least weight of a key, (B, H); ∞ if there is none."""
    return weights.masked_fill(~real, torch.inf).amin(2)
