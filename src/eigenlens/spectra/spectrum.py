"""The result of an eigen-analysis: one spectrum, and all spectra of a study."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from ..captures import Head, Labels, Site, labelled, location
from ..errors import EigenlensError
from ..names import unknown_name
from ..stats.within import SHARES
from .centring import CENTRINGS, Centring
from .dimension import dimension_at, effective_rank, participation_ratio
from .valid_rows import ValidRows

Analysis = Literal["rows", "matrices"]
Level = Literal["head", "layer", "stack"]
ANALYSES, LEVELS = get_args(Analysis), get_args(Level)
NAMED = {"analysis": ANALYSES, "level": LEVELS, "centring": CENTRINGS}
LOCATED = (*NAMED, "stack", "layer", "head")
ATTRIBUTES = (*LOCATED, "label", "samples", "dimensions")
"""The attributes that spectra are selected by."""
RANKS = (1, 4, 16, 64)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of a head, a layer or a whole stack, and what held-out inputs show.

    A layer is all its heads as one sample.

    `eigenvalues (m,)` are descending; `m` is all of them for rows and the sketch's rank for
    matrices. `held_out (m,)` is the share of held-out variance in the first k components of the
    fit, `low` and `high` its 95 % interval over documents. `valid_rows` is given for rows of a head
    under a mask: the same over the rows that see a key. With `lower_bound` the components are not
    quite the best ones: the true eigenvalues and in-sample shares are at least these, and fewer
    components may be enough.
    """

    analysis: Analysis
    level: Level
    centring: Centring
    stack: str
    layer: int | None
    head: int | None
    samples: int
    dimensions: int
    total: float
    eigenvalues: np.ndarray
    held_out: np.ndarray
    low: np.ndarray
    high: np.ndarray
    lower_bound: bool = False
    valid_rows: ValidRows | None = None

    @property
    def at(self) -> Head | Site | str:
        """The head, the layer, or the name of the stack."""
        return self.stack if self.layer is None else location(self.stack, self.layer, self.head)

    @property
    def label(self) -> str:
        """The label, such as `L3H7`, or `L3`, or the name of a stack."""
        return self.at if isinstance(self.at, str) else self.at.label

    @property
    def explained(self) -> np.ndarray:
        """The share of the variance of the fit inputs in the first k components, (m,)."""
        return (
            np.clip(self.eigenvalues.cumsum() / self.total, 0, 1)
            if self.total > 0
            else np.zeros(len(self.eigenvalues))
        )

    @property
    def effective_rank(self) -> float:
        """`exp(−Σ p ln p)` with `p = λ / total`, in-sample; a lower bound if truncated."""
        return effective_rank(self.eigenvalues, self.total)

    @property
    def participation_ratio(self) -> float:
        """`(Σ λ)² / Σ λ²`, in the sample."""
        return participation_ratio(self.eigenvalues, self.total)

    def dimension(self, share: float, held_out: bool = True) -> int | None:
        """Return how many components `share` of the variance needs, held out or in-sample.

        None if the spectrum does not reach it.
        """
        return dimension_at(self.held_out if held_out else self.explained, share)

    def row(self) -> dict[str, Any]:
        """One flat record, as in `--json` and CSV."""
        record: dict[str, Any] = {
            "analysis": self.analysis,
            "level": self.level,
            "centring": self.centring,
            "stack": self.stack,
            "layer": self.layer,
            "head": self.head,
            "samples": self.samples,
            "dimensions": self.dimensions,
            "total_variance": self.total,
            "effective_rank": self.effective_rank,
            "participation_ratio": self.participation_ratio,
        }
        if self.analysis == "matrices":
            record["lower_bound"] = self.lower_bound
        for share in SHARES:
            record[f"dimension_{round(share * 100)}"] = self.dimension(share, held_out=False)
            record[f"held_out_dimension_{round(share * 100)}"] = self.dimension(share)
        for rank in RANKS:
            if rank <= len(self.held_out):
                for key, curve in (
                    ("held_out", self.held_out),
                    ("held_out_low", self.low),
                    ("held_out_high", self.high),
                ):
                    record[f"{key}_at_{rank}"] = _number(curve[rank - 1])
        return record if self.valid_rows is None else record | self.valid_rows.row()

    def points(self, most: int = 48) -> list[dict[str, Any]]:
        """The curves at up to `most` numbers of components.

        Held out with its interval, and in-sample.
        """
        chosen = counted(len(self.eigenvalues), most) - 1
        curves = {
            "held out": (self.held_out, self.low, self.high),
            "in the sample": (self.explained, None, None),
        }
        return [
            {
                "analysis": self.analysis,
                "components": int(k) + 1,
                "variance": name,
                "share": _number(curve[k]),
                "low": None if low is None else _number(low[k]),
                "high": None if high is None else _number(high[k]),
            }
            for name, (curve, low, high) in curves.items()
            for k in chosen
        ]

    def plot(self) -> Any:
        """Draw variance explained against components, held out and in-sample (an altair chart)."""
        import altair as alt

        from .plots import explained_curve

        return explained_curve(alt.Data(values=self.points())).properties(title=self.label)


def counted(m: int, most: int = 48) -> np.ndarray:
    """Return the numbers of components at which a curve of m is drawn.

    All, or the first sixteen and up to `most` in even ratios.
    """
    if m <= most:
        return np.arange(1, m + 1)
    return np.unique(
        np.concatenate([np.arange(1, 17), np.round(np.geomspace(1, m, most)).astype(int)])
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, eq=False, repr=False)
class Spectra:
    """All spectra of a study, in the order stack, layer, head.

    `of` is `scores`, or `pattern` for the probabilities after the softmax.
    """

    spectra: tuple[Spectrum, ...]
    of: Literal["scores", "pattern"] = "scores"

    def __len__(self) -> int:
        return len(self.spectra)

    def __iter__(self) -> Iterator[Spectrum]:
        return iter(self.spectra)

    @property
    def labels(self) -> Labels:
        """The labels of heads and layers: `L3H7`, or `encoder L3H7` if there are several stacks."""
        return Labels(spectrum.stack for spectrum in self)

    def select(self, **wanted: Any) -> Spectra:
        """Return the spectra that have the given attributes.

        `select(analysis="rows", level="head", centring="centred", layer=2)`.
        """
        for name, value in wanted.items():
            if name not in ATTRIBUTES:
                raise unknown_name("attribute of a spectrum", name, ATTRIBUTES)
            if (known := NAMED.get(name)) is not None and value not in known:
                raise unknown_name(name, value, known)
        found = tuple(
            s for s in self if all(getattr(s, key) == value for key, value in wanted.items())
        )
        return Spectra(found, self.of)

    def one(self, **wanted: Any) -> Spectrum:
        """Return the one spectrum that has the given attributes; none or several are an error."""
        found = self.select(**wanted)
        if len(found) != 1:
            message = ", ".join(f"{name} {value}" for name, value in wanted.items())
            raise EigenlensError(
                f"{len(found)} spectra have {message}, but one was asked for{self._nearest(wanted)}"
            )
        return found.spectra[0]

    def _nearest(self, wanted: dict[str, Any]) -> str:
        """List the values of an attribute that would help.

        That is the attribute that leaves no spectrum, or those not given that leave several.
        """
        left = self
        for name, value in wanted.items():
            if not len(found := left.select(**{name: value})):
                return (
                    f"; {name} may be"
                    f" {', '.join(dict.fromkeys(str(getattr(s, name)) for s in left))}"
                )
            left = found
        for name in LOCATED:
            values = dict.fromkeys(str(getattr(s, name)) for s in left)
            if name not in wanted and len(values) > 1:
                return f"; {name} may be {', '.join(values)}"
        return ""

    def rows(self) -> list[dict[str, Any]]:
        """One flat record per spectrum, ready for a data frame."""
        return [spectrum.row() for spectrum in self]

    def plot(self, **wanted: Any) -> Any:
        """Draw held-out and in-sample curves, one panel per layer; `wanted` is as in `select`."""
        from .plots import spectrum_curves

        analysis = "rows" if len(self.select(analysis="rows")) else "matrices"
        return spectrum_curves(
            self.select(**{"analysis": analysis, "level": "head", "centring": "centred", **wanted})
        )

    @property
    def sentence(self) -> str:
        """How many dimensions the heads need, in words."""
        from .sentences import dimension_sentence

        return dimension_sentence(self)

    def __repr__(self) -> str:
        return f"<{len(self)} spectra of {self.of}>"

    def _repr_html_(self) -> str:
        from ..display import html_view

        rows = self.select(level="head", centring="centred").rows() or self.rows()
        return html_view(
            "Spectra", self.sentence, self.plot() if self.sentence else None, labelled(rows)
        )
