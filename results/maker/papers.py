"""A finished reproduction as a result: rounded, without tables that nothing needs, and with claims
that follow from the tables as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eigenlens import EigenlensError
from eigenlens.papers import PAPERS, Paper
from eigenlens.papers.paper import Size

from .store import RESULTS, as_text, rounded

DIGITS = (6, 9, 12, 17)
"""Significant digits, tried in turn: some claims are about the difference of two close figures."""
LONG = 50_000
"""Characters of a table that is left out if neither claims nor pictures nor prints need it."""
MISSING = RESULTS / "missing.txt"
"""The papers that have no result yet, one per line."""


class Watched(dict[str, Any]):
    """Tables that remember which of them were read."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        super().__init__(tables)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.seen |= {*super().keys()}
        return super().__iter__()

    def items(self) -> Any:
        self.seen |= {*super().keys()}
        return super().items()

    def values(self) -> Any:
        self.seen |= {*super().keys()}
        return super().values()


def stored(name: str, record: dict[str, Any], size: Size = "full") -> dict[str, Any]:
    """What the file of a paper holds beside its header, of what `reproduction.json` holds."""
    paper = PAPERS[name]
    needed = needed_tables(paper, record, size)
    left_out = [
        table
        for table, rows in record["tables"].items()
        if table not in needed and len(as_text(rows)) > LONG
    ]
    kept = {table: rows for table, rows in record["tables"].items() if table not in left_out}
    for digits in DIGITS:
        short = rounded({**record, "tables": kept}, digits)
        claims = judge(paper, short["tables"], size, digits)
        if all(map(_agree, claims, record["claims"])):
            return {
                "size": size,
                "cut_down": cut_down(paper) if size == "full" else {},
                "digits": digits,
                "left_out": left_out,
                "result": {**short, "claims": claims},
            }
    raise EigenlensError(
        f"the claims of {name} do not follow from its tables as they are stored: a claim rests on"
        " more than the tables"
    )


def judge(
    paper: Paper, tables: Mapping[str, Any], size: Size, digits: int = 6
) -> list[dict[str, Any]]:
    """The claims that these tables give."""
    made = paper.claims(tables, size == "quick")
    return [rounded(claim.record(), digits) for claim in made]


def needed_tables(paper: Paper, record: dict[str, Any], size: Size) -> set[str]:
    """The tables that claims and pictures read, and those that are printed."""
    watched = Watched(record["tables"])
    paper.claims(watched, size == "quick")
    paper.charts(watched)
    return watched.seen | {table for _, table in paper.shown}


def cut_down(paper: Paper) -> dict[str, list[Any]]:
    """The settings in which the full run is less than the thorough one: both values of each."""
    if paper.thorough is None:
        return {}
    full, long = asdict(paper.scale("full")), asdict(paper.scale("thorough"))
    return {key: [full[key], long[key]] for key in full if full[key] != long[key]}


def missing(path: Path = MISSING) -> list[str]:
    """The papers that are said to have no result."""
    return path.read_text(encoding="utf-8").split() if path.is_file() else []


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a claim says the same of rounded tables: its verdict, and three digits."""
    first, second = (f"{c['verdict']} {rounded(c['measured'], 3)}" for c in (one, other))
    return first == second  # as text: NaN is NaN
