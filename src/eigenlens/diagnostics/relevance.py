"""How much each head gives to what its layer gives (arXiv 2205.07100).

    c_{t,h} = ‖z_{t,h} W_O^h‖₁ / Σ_h' ‖z_{t,h'} W_O^h'‖₁

z is what a head gives, W_O^h its rows of the output projection; the median over tokens, then over
inputs.
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
"""Of the histogram of medians on [0, 1]: the median over inputs is right to half a bin, 0.0005."""
_NUMBERS = 2**24  # of z W_O that are held at once


class Relevance(Diagnostic):
    """Median and mean over inputs of the median of c over tokens.

    Heads that all count alike have 1/H.

    The terms of all heads are as large as H outputs: only the expensive inputs of a call are
    measured. Kept besides the mean: a histogram of the medians of inputs, (H, 1000), whose median
    is the median over inputs to 0.0005. Self- and cross-attention, where the output projection is
    known. The evenness of a layer is the entropy of its heads' medians over log H: 1 where they
    count alike.
    """

    name = "relevance"
    title = "Head relevance"
    sees = "calls"
    level = "head"
    numbers: ClassVar[Mapping[str, str]] = {
        "median": "share of the head in what its layer gives, median over inputs",
        "mean": "share of the head in what its layer gives, mean over inputs",
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
        return "" if self._outputs else (reasons or ["no attention was seen"])[0]

    def measure(self, seen: CallView) -> Tensor | None:
        """The median of c over the tokens of the expensive inputs, (b, 1, H); None of none."""
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
            f"The head that counts most is {labels(most)}, with {percent(of[most])} of what its"
            " layer gives"
        )
        if not known:
            return f"{message}."
        mean = sum(row["evenness"] for row in known) / len(known)
        least = min(known, key=lambda row: row["evenness"])
        where = labels(location_of(least))
        return (
            f"{message}; heads count most unlike in {where} (evenness {least['evenness']:.2f}, mean"
            f" of all layers {mean:.2f})."
        )


def _medians(histogram: Tensor) -> list[float | None]:
    """The median of each head by its histogram (H, bins).

    The middle of the bin of the middle input; of an even number of inputs the mean of the middle
    two.
    """
    found: list[float | None] = []
    for counts in histogram.cumsum(1):
        n = float(counts[-1])
        middle = [int(torch.searchsorted(counts, rank)) for rank in ((n + 1) // 2, n // 2 + 1)]
        found.append(sum((k + 0.5) / BINS for k in middle) / 2 if n else None)
    return found
