"""What a paper claims, what was measured here, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import EigenlensError
from ..names import unknown_name
from ..run.result import TitledTable
from ..run.result_folder import read_result, report_damage
from ..run.schema import MEASURED, TableSchema, check_schema
from ..run.tables_result import TablesResult

Tables = Mapping[str, Sequence[dict[str, Any]]]
"""What was measured: lists of rows by name."""
Verdict = Literal["reproduced", "not reproduced", "depends", "out of reach"]
REASONS = ("the protocol: ", "the scale: ", "the claim: ")
"""How the reason of a claim that is not reproduced begins."""
SCHEMA = {
    "paper": str,
    "title": str,
    "claims": [
        {
            "claim": str,
            "published": str,
            "measured": (MEASURED, None),
            "interval": ([MEASURED], None),
            "criterion": str,
            "verdict": Verdict,
            "note": str,
            "reason": str,
        }
    ],
    "tables": TableSchema([dict]),
    "notes": [str],
    "settings": dict,
    "shown": [[str]],
}
"""What `reproduction.json` holds."""


@dataclass(frozen=True)
class Claim:
    """One claim: what was `published`, what was `measured`, and whether they agree.

    `interval` is that of what was measured. `criterion` says what the verdict rests on, such as
    "reproduced if at most 0.25". `note` says what was measured, what the interval spans, and what
    the verdict depends on.

    A claim `depends` when it was stated without a figure and holds at some thresholds and not at
    others. It is `out of reach` when it is about a scale, a task or a model that is not here;
    `measured` is then the nearest miniature, or None.

    `reason` says of a claim that is not reproduced whether the protocol, the scale or the claim is
    why, with the measurement that shows it: it begins with "the protocol: ", "the scale: " or
    "the claim: ". Claims with another verdict have none.
    """

    claim: str
    published: str
    measured: float | None
    interval: tuple[float, float] | None
    criterion: str
    verdict: Verdict
    note: str
    reason: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise unknown_name("verdict", self.verdict, get_args(Verdict))
        if self.reason and not self.reason.startswith(REASONS):
            raise EigenlensError(f"a reason begins with one of {', '.join(REASONS)}")

    @property
    def words(self) -> str:
        """Criterion, note and reason, as sentences that a page shows below the table."""
        parts = (self.criterion, self.note, self.reason)
        said = (text[:1].upper() + text[1:] for text in parts if text)
        return " ".join(f"{text}." for text in said)

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "interval": None if self.interval is None else list(self.interval)}


@dataclass(frozen=True)
class Reproduction(TablesResult):
    """All claims of a paper, the tables behind them, and what was left out."""

    kind = "reproduction"
    left_out = frozenset({"seeds", "kept_low", "kept_high", "training_gigaflops", "each"})
    most_rows = 12

    paper: str
    title: str
    claims: tuple[Claim, ...]

    @property
    def name(self) -> str:
        """The paper by its name here: `rank-collapse`."""
        return self.paper

    def rows(self) -> list[dict[str, Any]]:
        """One row per claim."""
        return [claim.record() for claim in self.claims]

    def record(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "paper": self.paper,
            "title": self.title,
            "claims": self.rows(),
            **self.tables_record(),
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Reproduction:
        claims = (
            Claim(**{**claim, "interval": tuple(claim["interval"]) if claim["interval"] else None})
            for claim in record["claims"]
        )
        return cls(record["paper"], record["title"], tuple(claims), **cls.tables_of(record))

    @classmethod
    def open(cls, folder: str | Path) -> Reproduction:
        """Open a reproduction; a damaged or foreign folder is refused with the reason."""
        how = ("reproduce", "PAPER", "-o", Path(folder).parent)
        record = read_result(folder, "reproduction", None, how)
        with report_damage(folder, "reproduction"):
            check_schema(record, SCHEMA, "it")
            return cls.from_record(record)

    def main_columns(self, name: str) -> Sequence[str]:
        """The columns that the paper names for this table."""
        from . import PAPERS

        return PAPERS[self.paper].columns.get(name, ()) if self.paper in PAPERS else ()

    def printed(self) -> list[TitledTable]:
        """The claims with their notes, by number, and the tables behind them."""
        claims = [
            {
                "#": number,
                "claim": claim.claim,
                "published": claim.published,
                "measured": claim.measured,
                "low": claim.interval and claim.interval[0],
                "high": claim.interval and claim.interval[1],
                "verdict": claim.verdict,
            }
            for number, claim in enumerate(self.claims, 1)
        ]
        notes = "\n".join(f"{i}. {claim.words}" for i, claim in enumerate(self.claims, 1))
        main = ("#", "claim", "published", "measured", "verdict")
        return [TitledTable("Claims", claims, notes, main), *super().printed()]

    def plot(self) -> Any:
        """The paper's main picture (an altair chart)."""
        from .pictures import charts

        if not self.tables:
            raise EigenlensError(
                "this reproduction has no tables behind its claims, so there is nothing to draw"
            )
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
