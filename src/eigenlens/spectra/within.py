"""How many components one input's scores need: the distribution over inputs, per head."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from ..captures import Head, Labels, Site, labelled
from ..display import percent
from ..errors import EigenlensError
from ..names import unknown_name
from ..stats.within import SHARES

WithinKind = Literal["scores", "centred", "pattern", "weights"]
KINDS = get_args(WithinKind)
"""Scores, scores without the mean of their row, patterns, and the weights `W_QK` of the head."""
IN_WORDS = {
    "scores": "scores",
    "centred": "scores without their row's mean",
    "pattern": "pattern",
    "weights": "weights",
}
ATTRIBUTES = ("what", "tokens", "stack", "layer", "head", "label")
ENOUGH = 1 - 1e-12


@dataclass(frozen=True, eq=False)
class WithinSpectrum:
    """The singular components of one kind of matrix of a head, over the inputs measured.

    `counts (4, m + 1)` says in how many inputs c components were the least that hold 50, 90, 95,
    and 99 % of the energy `Σσ²`; `curve (m,)` is the mean share of each component; `ranks (2,)` are
    the mean effective rank `exp(−Σ p ln p)`, `p = σ/Σσ`, and the mean stable rank `Σσ²/σ₁²`.

    Scores are the products of queries and keys. Where the model adds a position bias or caps them
    before its softmax, `linear` is False, and only the pattern has that in it.
    """

    stack: str
    layer: int
    head: int
    what: WithinKind
    tokens: int
    inputs: int
    counts: np.ndarray
    curve: np.ndarray
    ranks: np.ndarray
    linear: bool = True

    @property
    def at(self) -> Head:
        return Head(self.stack, self.layer, self.head)

    @property
    def label(self) -> str:
        return self.at.label

    @property
    def most(self) -> int:
        """The most components that such a matrix can have."""
        return min(len(self.curve), self.tokens) if self.tokens else len(self.curve)

    @property
    def effective_rank(self) -> float:
        return float(self.ranks[0])

    @property
    def stable_rank(self) -> float:
        return float(self.ranks[1])

    def dimension(self, share: float = 0.9, quantile: float = 0.5) -> int:
        """How many components hold `share` of the energy in the median input, or at a quantile.

        The least number that is enough in that part of the inputs; 0 and 1 are the extremes.
        """
        if share not in SHARES:
            raise EigenlensError(
                f"components are counted at {', '.join(percent(s) for s in SHARES)}, not at"
                f" {share:g}"
            )
        seen = self.counts[SHARES.index(share)].cumsum()
        wanted = max(quantile * self.inputs * ENOUGH, 0.5)
        return int(np.argmax(seen >= wanted))

    def mean_dimension(self, share: float = 0.9) -> float:
        """The mean over inputs of the components that hold `share` of the energy."""
        counts = self.counts[SHARES.index(share)]
        return float(counts @ np.arange(len(counts)) / counts.sum())

    def left(self, rank: int) -> float:
        """The share of the energy that the best `rank` components of each input leave, on average.

        No estimator of that rank can leave less.
        """
        return float(max(1 - self.curve[:rank].sum(), 0.0))

    def row(self) -> dict[str, Any]:
        """One flat record, as in `--json` and CSV."""
        record: dict[str, Any] = {
            "what": self.what,
            "tokens": self.tokens,
            "stack": self.stack,
            "layer": self.layer,
            "head": self.head,
            "inputs": self.inputs,
            "most": self.most,
        }
        for share in SHARES:
            name = f"dimension_{round(share * 100)}"
            record[name] = self.dimension(share)
            record[f"{name}_least"] = self.dimension(share, 0.0)
            record[f"{name}_most"] = self.dimension(share, 1.0)
            record[f"{name}_mean"] = self.mean_dimension(share)
        return record | {"effective_rank": self.effective_rank, "stable_rank": self.stable_rank}


@dataclass(frozen=True, eq=False, repr=False)
class Within:
    """The spectra within one input of all heads, at every length that was measured.

    >>> study.within.one(what="centred", layer=2, head=3, tokens=128).dimension(0.9)
    >>> study.within.growth()  # medians over the heads by length
    """

    spectra: tuple[WithinSpectrum, ...]

    def __len__(self) -> int:
        return len(self.spectra)

    def __iter__(self) -> Iterator[WithinSpectrum]:
        return iter(self.spectra)

    @property
    def labels(self) -> Labels:
        return Labels(one.stack for one in self)

    @property
    def lengths(self) -> list[int]:
        """The numbers of tokens at which scores were measured, rising."""
        return sorted({one.tokens for one in self if one.what != "weights"})

    def select(self, **wanted: Any) -> Within:
        """The spectra with the given attributes: `select(what="centred", tokens=128)`."""
        for name, value in wanted.items():
            if name not in ATTRIBUTES:
                raise unknown_name("attribute of a spectrum within an input", name, ATTRIBUTES)
            if name == "what" and value not in KINDS:
                raise unknown_name("kind of matrix", value, KINDS)
        return Within(
            tuple(s for s in self if all(getattr(s, key) == x for key, x in wanted.items()))
        )

    def whole(self, what: WithinKind) -> Within:
        """The spectra of whole inputs, not of their first tokens; of weights, those there are."""
        longest: dict[Site, int] = {}
        found = self.select(what=what)
        for one in found:
            longest[one.at.site] = max(longest.get(one.at.site, 0), one.tokens)
        return Within(tuple(one for one in found if one.tokens == longest[one.at.site]))

    def one(self, **wanted: Any) -> WithinSpectrum:
        """The one spectrum with the given attributes; none or several are an error."""
        found = self.select(**wanted)
        if len(found) != 1:
            message = ", ".join(f"{name} {value}" for name, value in wanted.items())
            raise EigenlensError(f"{len(found)} spectra have {message}, but one was asked for")
        return found.spectra[0]

    def rows(self) -> list[dict[str, Any]]:
        """One flat record per head, kind of matrix and length."""
        return [one.row() for one in self]

    def growth(self) -> list[dict[str, Any]]:
        """Medians over the heads by kind of matrix and number of tokens.

        The inputs of each length are those on which it was measured.
        """
        rows = []
        for what in KINDS[:3]:
            for tokens in self.lengths:
                if some := self.select(what=what, tokens=tokens).spectra:
                    row: dict[str, Any] = {
                        "what": what,
                        "tokens": tokens,
                        "heads": len(some),
                        "inputs": max(one.inputs for one in some),
                    }
                    for share in SHARES:
                        found = [one.dimension(share) for one in some]
                        row[f"dimension_{round(share * 100)}"] = float(np.median(found))
                    least, most = (
                        float(np.quantile([one.dimension(0.9) for one in some], q))
                        for q in (0.1, 0.9)
                    )
                    row |= {"dimension_90_low": least, "dimension_90_high": most}
                    rows.append(row)
        return rows

    def plot(self, share: float = 0.9) -> Any:
        """Layers × heads with the components of the median input (row-centred), and the growth.

        Growth with length is drawn where several lengths were measured (altair charts).
        """
        import altair as alt

        from .plots import growth_curves, within_map

        drawn = within_map(self.whole("centred"), share)
        return alt.vconcat(drawn, growth_curves(self)) if len(self.lengths) > 1 else drawn

    @property
    def sentence(self) -> str:
        """How many components one input's scores need, in words; empty if none was measured."""
        heads = self.whole("centred")
        if not len(heads):
            return ""
        found = [one.dimension(0.9) for one in heads]
        first = heads.spectra[0]
        whose = "of the median head need" if len(heads) > 1 else f"of {heads.labels(first.at)} need"
        before = "the mask" if all(one.linear for one in heads) else "mask, position bias and cap"
        text = (
            f"Within one input of {first.tokens:,} tokens, which has components of its own, the"
            f" row-centred scores {whose} {float(np.median(found)):g} of {first.most} for 90 % of"
            f" their energy (before {before})"
        )
        if len(heads) > 1:
            text += f"; the least is {min(found)}, the most {max(found)}"
        return f"{text}."

    def __repr__(self) -> str:
        return f"<{len(self)} spectra within one input>"

    def _repr_html_(self) -> str:
        from ..display import html_view

        rows = self.whole("centred").rows()
        return html_view("Within one input", self.sentence, self.plot(), labelled(rows))


def within_spectra(
    sums: Mapping[tuple[Site, WithinKind, int], Mapping[str, Tensor]],
    bent: Collection[Site] = (),
) -> Within:
    """The spectra of every head, from the sums by site, kind of matrix and number of tokens.

    At the sites `bent` a bias or a cap changes the products before the softmax.
    """
    found = []
    for (site, what, tokens), parts in sums.items():
        number = float(parts["number"])
        counts, curve = parts["counts"].numpy(), parts["curve"].numpy() / number
        ranks = parts["ranks"][:, :, 0].numpy() / number
        found += [
            WithinSpectrum(
                site.stack,
                site.layer,
                head,
                what,
                tokens,
                int(number),
                counts[head],
                curve[head],
                ranks[head],
                site not in bent,
            )
            for head in range(len(counts))
        ]
    order = {site: at for at, site in enumerate(dict.fromkeys(site for site, _, _ in sums))}
    return Within(
        tuple(
            sorted(
                found,
                key=lambda s: (order[s.at.site], s.head, KINDS.index(s.what), s.tokens),
            )
        )
    )
