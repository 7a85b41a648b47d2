"""Blocks and figures of the pages that come from `results/`, filled in place.

    <!-- results: claims -->                 the claims of the page's paper, with their criteria
    <!-- results: run -->                    how the result was made
    <!-- results: table "random by depth" columns="family | 0 = depth 0 @ .2f" where="form=SAN" -->
    <!-- results: table areas columns="method" across="task" value="positive" -->
    <!-- results: papers -->                 all papers
    <!-- results: benchmark study-time -->   a table of `results/benchmarks`
    <!-- results: provenance -->             where the benchmarks' tables of this page come from

each up to `<!-- end of results -->`, and `<!--=claims[3].measured:.2f-->0.58<!--/-->` in a sentence
(`values.py` has the paths). What belongs to a result that is not there stays as it is.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from eigenlens.papers import PAPERS, Reproduction
from maker import store
from maker.header import TRANSCRIBED

from . import claims
from .cells import cell, formatted, heading, table
from .questions import QUESTIONS
from .values import NoValue, rows_where, value

BLOCK = re.compile(
    r"(?P<open><!-- results: (?P<what>.+?) -->\n)(?P<old>.*?)(?P<end><!-- end of results -->)",
    re.DOTALL,
)
INLINE = re.compile(
    r"(?P<open><!--=(?P<path>[^>]+?)(?::(?P<form>[~+,]*(?:\.\d+)?[defgs%]))?-->)"
    r"(?P<old>.*?)(?P<end><!--/-->)",
    re.DOTALL,
)
MARKERS = re.compile(r"<!-- (?:results: .+?|end of results) -->\n\n?|<!--(?:=[^>]+?|/|~[^>]+?)-->")


class WrongMarker(ValueError):
    """A marker that asks for what is not there."""


@dataclass(frozen=True)
class Results:
    """The results that are there, read once."""

    folder: Path = store.RESULTS
    papers: Mapping[str, dict[str, Any]] = field(init=False)
    benchmarks: Mapping[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "papers", store.papers(self.folder))
        object.__setattr__(self, "benchmarks", store.benchmarks(self.folder / "benchmarks"))

    @cached_property
    def complete(self) -> bool:
        """Whether every paper has its result."""
        return set(PAPERS) <= set(self.papers)


@dataclass(frozen=True)
class Page:
    """A page by its place in the repository, such as `docs/papers/gated.md`."""

    place: str
    results: Results

    @property
    def paper(self) -> str:
        """The paper that the page is about, if it is about one."""
        return Path(self.place).stem if self.place.startswith("docs/papers/") else ""

    def fill(self, text: str) -> str:
        """The page with all that its results give."""
        tables = {words[1] for words in blocks(text) if words[0] == "benchmark"}

        def block(found: re.Match[str]) -> str:
            made = self._made(shlex.split(found["what"]), sorted(tables))
            return found[0] if made is None else f"{found['open']}\n{made}\n\n{found['end']}"

        def figure(found: re.Match[str]) -> str:
            made = self._figure(found["path"], found["form"] or "")
            return found[0] if made is None else f"{found['open']}{made}{found['end']}"

        try:
            return INLINE.sub(figure, BLOCK.sub(block, text))
        except (NoValue, ValueError) as error:
            raise WrongMarker(f"{self.place}: {error}") from None

    def _made(self, words: list[str], tables: list[str]) -> str | None:
        """What a block holds; None where its result is not there."""
        kind, rest = words[0], [word for word in words[1:] if "=" not in word]
        given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if kind == "papers":
            there = self.results.complete
            return claims.index(dict(self.results.papers), QUESTIONS) if there else None
        if kind in ("benchmark", "provenance"):
            return self._benchmark(rest, given, tables)
        name = given.pop("paper", self.paper)
        record = self.results.papers.get(name)
        if kind not in ("claims", "run", "table") or name not in PAPERS:
            raise ValueError(f"no block {' '.join(words)!r}")
        if record is None:
            return None
        if kind == "claims":
            return claims.claims(record["result"])
        if kind == "run":
            return claims.run(record)
        tables_of = record["result"]["tables"]
        if rest[0] not in tables_of:
            raise NoValue(f"no table {rest[0]!r}; there are {', '.join(tables_of)}")
        usual = PAPERS[name].columns.get(rest[0], ())
        return rows_as_table(tables_of[rest[0]], given, usual)

    def _benchmark(self, names: list[str], given: dict[str, str], tables: list[str]) -> str | None:
        known = self.results.benchmarks
        if not names:
            own = [*tables, f"{Path(self.place).stem}-sentences"]
            return provenance({name: known[name] for name in own if name in known})
        missing = [name for name in names if name not in known]
        if missing:
            return None
        rows = [row for name in names for row in known[name]["rows"]]
        return rows_as_table(rows, given, (), known[names[0]].get("formats", {}))

    def _figure(self, path: str, form: str) -> str | None:
        found = re.fullmatch(r"(?:(\w+) )?([a-z0-9-]+)/(.*)", path)
        over, name, rest = found.groups() if found else (None, self.paper, path)
        if rest.startswith("papers."):
            if not self.results.complete:
                return None
            root: dict[str, Any] = {"papers": claims.totals(dict(self.results.papers))}
        elif name in self.results.benchmarks:
            root = self.results.benchmarks[name]
        elif name in self.results.papers:
            record = self.results.papers[name]
            root = {**record, **record["result"]}
        else:
            return None
        item = value(f"{over} {rest}" if over else rest, root)
        return formatted(item, form) if form else cell(item)


def blocks(text: str) -> list[list[str]]:
    """The words of every block of a page."""
    return [shlex.split(found["what"]) for found in BLOCK.finditer(text)]


def without_markers(text: str) -> str:
    """A page without the comments that only its source needs."""
    return MARKERS.sub("", text)


def rows_as_table(
    rows: list[dict[str, Any]],
    given: Mapping[str, str],
    usual: Any = (),
    formats: Mapping[str, str] | None = None,
) -> str:
    """Rows as a table of the columns that a marker asks for, or of the usual ones.

    `across` spreads one column: for each of its values there is a column of `value`. `last` keeps
    the row with the largest value of a column, `per` the other columns that name a group.
    """
    formats = formats or {}
    rows = list(rows_where(rows, given.get("where", "")))
    if "last" in given:
        rows = _last(rows, given["last"], given["per"].split(" | "))
    if not rows:
        raise NoValue(f"no rows where {given.get('where')}")
    keys = list(dict.fromkeys(key for row in rows for key in row))
    asked = [part.strip() for part in given.get("columns", "").split("|") if part.strip()]
    if asked:
        columns = [_column(part) for part in asked]
    else:
        some = [key for key in usual if key in keys]
        kept = some or [key for key in keys if key not in Reproduction.left_out]
        columns = [([key], heading(key), "") for key in kept]
    for names, _, _ in columns:
        for key in names:
            if key not in keys:
                raise NoValue(f"no column {key!r}; there are {', '.join(keys)}")
    if "across" in given:
        return _spread(rows, columns, given["across"], _column(given["value"]))
    return table(
        [words for _, words, _ in columns],
        [[_shown(row, column, formats) for column in columns] for row in rows],
    )


def _last(rows: list[dict[str, Any]], column: str, per: list[str]) -> list[dict[str, Any]]:
    ends: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        group = tuple(row[key] for key in per)
        if group not in ends or row[column] > ends[group][column]:
            ends[group] = row
    return list(ends.values())


Column = tuple[list[str], str, str]
"""The keys of a column, mostly one; what stands above it; the format of its numbers."""


def _column(part: str) -> Column:
    """`key = heading @ format`, or `low .. high = heading @ format` for both ends in one column."""
    words, _, form = (piece.strip() for piece in part.partition(" @ "))
    key, _, name = (piece.strip() for piece in words.partition(" = "))
    return re.split(r" \.\. ", key), name or heading(key.replace(" .. ", " – ")), form


def _shown(row: Mapping[str, Any], column: Column, formats: Mapping[str, str]) -> str:
    keys, _, form = column
    values = [(row.get(key), form or formats.get(key, "")) for key in keys]
    if all(value is None for value, _ in values):
        return cell(None)
    return " – ".join(cell(value, style) for value, style in values)


def _spread(rows: list[dict[str, Any]], columns: list[Column], across: str, shown: Column) -> str:
    over = list(dict.fromkeys(row[across] for row in rows))
    lines: dict[tuple[str, ...], dict[Any, str]] = {}
    for row in rows:
        own = tuple(_shown(row, column, {}) for column in columns)
        if row[across] in lines.setdefault(own, {}):
            raise NoValue(f"two rows for {across} {row[across]} and {', '.join(own)}")
        lines[own][row[across]] = _shown(row, shown, {})
    heads = [*(words for _, words, _ in columns), *(cell(value) for value in over)]
    return table(heads, [[*own, *(by.get(x, "–") for x in over)] for own, by in lines.items()])


def provenance(records: Mapping[str, dict[str, Any]]) -> str:
    """Where the tables of a page come from."""
    lines, typed = [], []
    for name, record in records.items():
        if record["code"] is None:
            typed.append(f"`{name}.json`")
            continue
        machine, versions = record["machine"], record["versions"]
        lines.append(
            f"- `{name}.json`: `{record['command']}`, {record['date']}, commit"
            f" `{record['commit'][:12]}`, {machine['threads']} threads of {machine['processor']}"
            f" ({machine['instructions']}), torch {versions['torch']},"
            f" {claims.took(record['seconds'])}"
        )
    if typed:
        lines.append(f"- {TRANSCRIBED}: {', '.join(typed)}")
    return "\n".join(lines)
