"""What a paper claims, what was measured here, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ..display import html_view
from ..errors import EigenlensError
from ..names import unknown

Tables = Mapping[str, Sequence[dict[str, Any]]]
"""What was measured: lists of rows by name."""
Verdict = Literal["reproduced", "not reproduced", "out of reach"]


@dataclass(frozen=True)
class Claim:
    """One claim: what was `published`, what was `measured` with its `interval`, and whether the one
    bears out the other.

    `note` names the criterion that the verdict rests on, and what the interval spans. Where a claim
    is out of reach, `measured` is the nearest miniature, or None.
    """

    claim: str
    published: str
    measured: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    note: str

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise unknown("verdict", self.verdict, get_args(Verdict))

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "interval": None if self.interval is None else list(self.interval)}


def judged(
    claim: str,
    published: str,
    measured: float,
    interval: tuple[float, float] | None,
    note: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Claim:
    """A claim whose verdict follows from a bound on what was measured; NaN meets no bound."""
    if (at_most is None) == (at_least is None):
        raise EigenlensError("a verdict rests on one bound, from above or from below")
    holds = measured <= at_most if at_most is not None else measured >= (at_least or 0.0)
    return Claim(
        claim, published, measured, interval, "reproduced" if holds else "not reproduced", note
    )


@dataclass(frozen=True)
class Reproduction:
    """All claims of a paper, the tables behind them, and what was left out."""

    paper: str
    title: str
    claims: tuple[Claim, ...]
    tables: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    shown: Sequence[Sequence[str]] = ()
    """Tables to print: title and name of each."""

    def rows(self) -> list[dict[str, Any]]:
        return [claim.record() for claim in self.claims]

    def record(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "paper": self.paper,
            "title": self.title,
            "claims": self.rows(),
            "tables": {name: list(rows) for name, rows in self.tables.items()},
            "notes": list(self.notes),
            "settings": dict(self.settings),
            "shown": [list(pair) for pair in self.shown],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Reproduction:
        claims = (
            Claim(**{**claim, "interval": tuple(claim["interval"]) if claim["interval"] else None})
            for claim in record["claims"]
        )
        return cls(
            record["paper"],
            record["title"],
            tuple(claims),
            record["tables"],
            tuple(record["notes"]),
            record["settings"],
            record["shown"],
        )

    def plot(self) -> Any:
        """The paper's main picture (an altair chart)."""
        from .pictures import charts

        return next(iter(charts(self).values()))

    @property
    def sentence(self) -> str:
        """How many claims got which verdict, in words."""
        count = {
            verdict: sum(claim.verdict == verdict for claim in self.claims)
            for verdict in get_args(Verdict)
        }
        message = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
        return f"Of {len(self.claims)} claims: {message}." if self.claims else ""

    def _repr_html_(self) -> str:
        return html_view(
            self.title, self.sentence, self.plot() if self.tables else None, self.rows()
        )
