"""How much each head contributes to the output of its layer (arXiv 2205.07100).

    c_{t,h} = ‖z_{t,h} W_O^h‖₁ / Σ_h' ‖z_{t,h'} W_O^h'‖₁

z is the output of a head, W_O^h its rows of the output projection; the median is taken over tokens,
then over inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..attention.relevance import evenness, shares, token_median
from ..captures import Site, location_of
from ..display import percent
from ..errors import EigenlensError
from ..stats.intervals import t_interval_of_sums
from .diagnostic import CallView, Diagnostic, LayerView, field_by_site
from .finding import Finding, Number
from .studied_model import StudiedModel

BINS = 1000
"""Bins of the histogram of medians on [0, 1]; the median over inputs is exact to 0.0005."""
_NUMBERS = 2**24  # of z W_O that are held at once


class Relevance(Diagnostic):
    """The share of each head in its layer's output: median and mean over inputs.

    Of each input the median of c over tokens is taken. If all heads contribute equally, each has
    1/H.

    The terms of all heads take as much memory as H outputs: only the expensive inputs of a call are
    measured. Besides the mean it keeps a histogram of the medians of inputs, (H, 1000), which gives
    the median over inputs to 0.0005. It measures self- and cross-attention, where the output
    projection is known. The evenness of a layer is the entropy of its heads' medians over log H: 1
    where all heads contribute equally.
    """

    name = "relevance"
    title = "Head relevance"
    sees = "calls"
    level = "head"
    numbers: ClassVar[Mapping[str, str]] = {
        "median": "share of the head in its layer's output, median over inputs",
        "mean": "share of the head in its layer's output, mean over inputs",
    }

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._outputs: dict[Site, Tensor] = {}

    def begin(self, studied: StudiedModel) -> str:
        reasons = []
        for site in studied.sites:
            try:
                self._outputs[site] = studied.weights(site).output  # (H, E, C)
            except EigenlensError as error:
                reasons.append(str(error))
        return "" if self._outputs else (reasons or ["no attention was captured"])[0]

    def measure(self, seen: CallView) -> Tensor | None:
        """Return the median of c over tokens for expensive inputs, (b, 1, H); None without any."""
        call, sampled = seen.call, seen.sampled_inputs
        if seen.site not in self._outputs or not len(sampled):
            return None
        # (b, H, S, E)
        v = call.v[sampled].repeat_interleave(call.group, 1) if call.group > 1 else call.v[sampled]
        z = seen.pattern[sampled] @ v.to(seen.pattern.dtype)  # (b, H, T, E)
        w_o = self._outputs[seen.site].to(z)
        several = max(1, _NUMBERS // max(len(z) * z.shape[2] * w_o.shape[2], 1))
        sizes = [
            (z[:, h : h + several] @ w_o[h : h + several]).abs().sum(3)
            for h in range(0, z.shape[1], several)
        ]
        return token_median(shares(torch.cat(sizes, 1).double()), seen.queries[sampled])[:, None]

    @torch.no_grad()
    def update(self, seen: CallView | LayerView) -> None:
        assert isinstance(seen, CallView)
        values = self.measure(seen)
        if values is None:
            return
        self.count(seen.site, values)
        medians = values[:, 0]  # (b, H)
        there = ~medians.isnan()
        at = (medians.nan_to_num() * BINS).long().clamp(0, BINS - 1)
        counts = torch.zeros(medians.shape[1], BINS, dtype=torch.float64, device=medians.device)
        self.add(f"{seen.site}/histogram", counts.scatter_add_(1, at.T, there.double().T))

    def found(self) -> Iterator[Number]:
        for site, histogram in field_by_site(self.sums, "histogram"):
            for head, median in enumerate(_medians(histogram)):
                if median is not None:
                    yield Number(
                        site.stack,
                        site.layer,
                        head,
                        "median",
                        median,
                        number=self._number(site, head),
                    )
            for head, (n, first, second) in enumerate(self.sums[f"{site}/values"][0].tolist()):
                if n:
                    yield Number(
                        site.stack,
                        site.layer,
                        head,
                        "mean",
                        *t_interval_of_sums(n, first, second),
                        int(n),
                    )

    def _number(self, site: Site, head: int) -> int:
        return int(self.sums[f"{site}/values"][0, head, 0])

    def tables(
        self, finding: Finding, tokens: Mapping[int, str]
    ) -> dict[str, list[dict[str, Any]]]:
        layers: dict[Site, list[float]] = {}
        for at, value in finding.values("median").items():
            layers.setdefault(Site(at.stack, at.layer), []).append(value)
        rows = []
        for site, each in layers.items():
            even = (
                float(evenness(torch.tensor(each, dtype=torch.float64))) if len(each) > 1 else None
            )
            rows.append(
                {
                    "stack": site.stack,
                    "layer": site.layer,
                    "heads": len(each),
                    "evenness": even,
                    "least": min(each),
                    "most": max(each),
                }
            )
        return {"How alike the heads of a layer count (evenness 1: all alike)": rows}

    def sentence(self, finding: Finding) -> str:
        (rows,) = self.tables(finding, {}).values()
        known = [row for row in rows if row["evenness"] is not None]
        of, labels = finding.values("median"), finding.labels
        most = max(of, key=lambda at: of[at])
        message = (
            f"The most important head is {labels(most)}: it contributes {percent(of[most])} of its"
            " layer's output"
        )
        if not known:
            return f"{message}."
        mean = sum(row["evenness"] for row in known) / len(known)
        least = min(known, key=lambda row: row["evenness"])
        where = labels(location_of(least))
        return (
            f"{message}. Heads differ most in importance in {where} (evenness"
            f" {least['evenness']:.2f}; 1 would mean all alike, the mean of all layers is"
            f" {mean:.2f})."
        )


def _medians(histogram: Tensor) -> list[float | None]:
    """Return the median of each head from its histogram (H, bins).

    The middle of the bin of the middle input; for an even number of inputs the mean of the middle
    two.
    """
    found: list[float | None] = []
    for counts in histogram.cumsum(1):
        n = float(counts[-1])
        middle = [int(torch.searchsorted(counts, rank)) for rank in ((n + 1) // 2, n // 2 + 1)]
        found.append(sum((k + 0.5) / BINS for k in middle) / 2 if n else None)
    return found
