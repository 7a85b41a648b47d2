"""Attention sinks: tokens that get much attention from most queries (arXiv 2603.05498)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..display import numbered, percent
from ..errors import EigenlensError
from .diagnostic import CallView, Diagnostic, LayerView, field_by_site
from .finding import Finding
from .token_counts import TokenCounts


@dataclass(frozen=True)
class SinkSettings:
    """`epsilon`: a key is a sink if it gets more than this from its queries, on average.

    The queries of a key are those that see it.
    """

    epsilon: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 1:
            raise EigenlensError(
                f"epsilon is a share of attention: it must be between 0 and 1, not {self.epsilon}"
            )


class Sinks(TokenCounts, Diagnostic):
    """Keys that get much attention: `α_k = Σ_{i sees k} A_ik / #{i sees k}`, a mean over queries.

    Under a causal mask `α_k = Σ_{i≥k} A_ik / (T−k+1)`. The first token is the first one that is not
    padding. Few queries see late keys under a causal mask, and these keys are among them: only keys
    that are seen by half as many queries as the most seen key can be sinks elsewhere. An input of
    one token has no sinks. Uniform causal attention over 64 tokens has `α₁ = H₆₄/64 = .0741`.

    It also keeps how many sinks there are at the first token and elsewhere, over heads and inputs,
    and for each stack the counts by token id, (2, vocabulary).
    """

    name = "sinks"
    title = "Attention sinks"
    sees = "calls"
    level = "head"
    numbers: ClassVar = {
        "rate": "share of inputs whose first token is a sink",
        "strength": "attention to the first token",
        "anywhere": "share of inputs with a sink at any token",
        "weight": "attention to the most attended token",
    }
    Settings = SinkSettings

    def measure(self, seen: CallView) -> Tensor:
        alpha, counted = seen.received, self._counted(seen)
        real = seen.seen_by > 0  # (B or 1, H or 1, S)
        first = alpha.gather(2, _first(real).expand(*alpha.shape[:2], 1))[..., 0]  # (B, H)
        most = alpha.masked_fill(~counted, -torch.inf).amax(2)
        epsilon = self.settings.epsilon
        # (B, 4, H)
        values = torch.stack(
            [(first > epsilon).double(), first, (most > epsilon).double(), most], 1
        )
        alone = (real.sum(2) < 2)[:, None].expand_as(values)  # no key to choose
        return values.masked_fill(alone, torch.nan)

    @torch.no_grad()
    def update(self, seen: CallView | LayerView) -> None:
        assert isinstance(seen, CallView)
        super().update(seen)
        several = (seen.seen_by > 0).sum(2, keepdim=True) > 1
        sink = (seen.received > self.settings.epsilon) & self._counted(seen) & several  # (B, H, S)
        front = torch.zeros_like(sink).scatter_(
            2, _first(seen.seen_by > 0).expand(*sink.shape[:2], 1), value=True
        )
        by_place = torch.stack([(sink & front).sum(1), (sink & ~front).sum(1)])  # (2, B, S)
        self.add(f"{seen.site}/places", by_place.sum((1, 2)))
        if seen.ids is not None and seen.vocabulary is not None and bool(sink.any()):
            counts = torch.zeros(2, seen.vocabulary, dtype=torch.float64, device=sink.device)
            ids = seen.ids.expand(by_place.shape[1:]).to(sink.device)
            counts.index_add_(1, ids.flatten(), by_place.flatten(1).double())
            self.add(f"{seen.call.site.stack}/tokens", counts)

    @staticmethod
    def _counted(seen: CallView) -> Tensor:
        """Return the keys that enough queries see to be sinks, (B or 1, H or 1, S).

        Enough is half as many as see the most seen key; under a window that key is seen by fewer.
        """
        return (seen.seen_by > 0) & (2 * seen.seen_by >= seen.seen_by.amax(2, keepdim=True))

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        places = []
        for stack in finding.stacks:
            front, elsewhere = self._places(stack)
            total = front + elsewhere
            places.append(
                {
                    "stack": stack,
                    "sinks": int(total),
                    "at the first token": front / total if total else None,
                    "elsewhere": elsewhere / total if total else None,
                }
            )
        words = self.token_rows(tokens)
        return {
            "Where the sinks are, over heads and inputs": places,
            **({"Tokens that are sinks": words} if words else {}),
        }

    def _places(self, stack: str) -> list[float]:
        sums = [x for site, x in field_by_site(self.sums, "places") if site.stack == stack]
        return torch.stack(sums).sum(0).tolist()

    def sentence(self, finding: Finding) -> str:
        rates, strengths = finding.values("rate"), finding.values("strength")
        rate, anywhere = (sum(v.values()) / len(v) for v in (rates, finding.values("anywhere")))
        heads = sum(value >= 0.5 for value in rates.values())
        strongest = max(strengths, key=lambda at: strengths[at])
        return (
            f"In {heads or 'none'} of {numbered(len(rates), 'head')} the first token gets more than"
            f" {percent(self.settings.epsilon)} of the attention in at least half of the inputs."
            f" Over all heads and inputs, {percent(rate)} have such a sink at the first token and"
            f" {percent(anywhere)} at any token. The first token gets most attention in"
            f" {finding.labels(strongest)} ({percent(strengths[strongest])})."
        )


def _first(real: Tensor) -> Tensor:
    """Return the place of the first key that is not padding, (B or 1, H or 1, 1)."""
    return real.to(torch.int8).argmax(2, keepdim=True)
