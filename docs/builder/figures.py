"""Figures in the sentences of a page: each has to stand in the results that the page belongs to.

A figure is known if a value of the results, or a number in their words (what was published, a note,
a setting), rounds to it as it is written; percent count as the share. Not looked at: generated
blocks and marked figures, code and formulas, whole numbers up to 20, and what is no figure at all:
arXiv numbers, dates, versions, heads, "claim 8". What none of this covers is marked by its kind:
`<!--~ published-->31–123<!--/-->`; the kinds are `KINDS`. A figure of a table of more than 100 rows
is marked by its path.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from .results import BLOCK, INLINE, Results, blocks

KINDS = ("published", "setting", "elsewhere", "arithmetic", "theory")
"""Why a figure is not in the results: of the paper, of the run, of another page, worked out from
figures beside it, or a constant of a theorem."""
MARKED = re.compile(r"<!--~ ?(?P<kind>[^>]*?)-->(?P<text>.*?)<!--/-->", re.DOTALL)
CODE = re.compile(r"^```.*?^```$|^(?: {4}|\t)\S[^\n]*$|`+[^`]{1,200}`+", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^\s$](?:[^$\n]*[^\s$])?\$", re.DOTALL)
NO_FIGURES = (
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"\]\([^)]*\)"),  # targets of links
    re.compile(r"https?://\S+"),
    re.compile(r"\b\d{4}\.\d{5}\b"),  # arXiv
    re.compile(r"\b\d{4}-\d\d-\d\d\b|\b(?:19|20)\d\d\b(?! (?:inputs|texts|tokens|steps))"),
    re.compile(r"\b(?:torch|transformers|Python|eigenlens|numpy) \d+(?:\.\d+)+"),
    re.compile(
        r"\b(?:claims?|layers?|depths?|blocks?|seeds?|heads?|sections?|figures?|tables?|step"
        r"|channel|epochs?|numbers?|rows?) \d+(?:(?:,| and| to| or|–| –)+ ?\d+)*(?![.,]?\d)",
        re.IGNORECASE,
    ),
    re.compile(r"\b[A-Za-z]\w*(?:-\w+)*-\d[\w.]*"),  # names: whisper-tiny-2, AVX-512
)
NUMBER = re.compile(
    r"(?<![\w.,/^_])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)\.\d+|\.\d+|(?<=\d))"
    r"(?:e[-+−]?\d+)?(?![\w])(?P<percent> ?%)?"
)
SMALL = 20
LONG = 100
"""Rows of a table that is not searched: among thousands of numbers there is every figure."""


class Pool:
    """The numbers of some results, to be asked whether one of them rounds to a figure."""

    def __init__(self, sources: Iterable[Any]) -> None:
        found = {abs(value) for source in sources for value in _numbers(source)}
        self.values = sorted(found)
        self.percent = sorted({*found, *(100 * value for value in found)})

    def has(self, figure: str) -> bool:
        """Whether a figure, as it is written, is one of the numbers, rounded."""
        text = figure.replace(",", "").replace("−", "-").rstrip(" %").lstrip("+-")
        mantissa, _, power = text.partition("e")
        digits = len(mantissa.partition(".")[2])
        half = 0.5 * 10.0 ** (int(power or 0) - digits)
        values = self.percent if figure.endswith("%") else self.values
        at = bisect_left(values, float(text) - half * 1.0001)
        return at < len(values) and values[at] <= float(text) + half * 1.0001


def unknown(text: str, sources: Iterable[Any]) -> list[str]:
    """The figures of a page's sentences that the sources do not hold, each with its line."""
    pool = Pool([*sources, CODE.findall(text)])  # a command says its settings
    found = []
    for figure, line in figures(text):
        if not pool.has(figure):
            found.append(f"{figure} in: {line}")
    return found


def sources_of(place: str, text: str, results: Results) -> list[Any]:
    """The results that a page belongs to: its paper's, or the benchmarks' tables that it shows.

    The figures of a benchmark's sentences that were typed before are in a table of their own.
    """
    name = PurePosixPath(place).stem
    if place == "docs/measurements/index.md":
        return list(results.benchmarks.values())
    if place.startswith("docs/papers/"):
        return [_short(results.papers[name])] if name in results.papers else []
    tables = {table for words in blocks(text) if words[0] == "benchmark" for table in words[1:2]}
    tables.add(f"{name}-sentences")
    return [results.benchmarks[table] for table in sorted(tables) if table in results.benchmarks]


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """A result without its long tables."""
    kept = {name: rows for name, rows in record["result"]["tables"].items() if len(rows) <= LONG}
    return {**record, "result": {**record["result"], "tables": kept}}


def figures(text: str) -> Iterator[tuple[str, str]]:
    """Every figure of a page's sentences, with the line around it."""
    plain = prose(text)
    for found in NUMBER.finditer(plain):
        figure = found[0].strip()
        whole = re.fullmatch(r"[-+−]?\d+", figure)
        if not re.search(r"\d", figure) or (whole and abs(int(figure.replace("−", "-"))) <= SMALL):
            continue
        begin = plain.rfind("\n", 0, found.start()) + 1
        end = plain.find("\n", found.end())
        yield figure, " ".join(plain[begin : end if end >= 0 else None].split())[:160]


def prose(text: str) -> str:
    """A page without what holds no figures of its own."""
    for pattern in (BLOCK, INLINE, MARKED, CODE, FORMULA, *NO_FIGURES):
        text = pattern.sub(" ", text)
    return text


def wrong_kinds(text: str) -> list[str]:
    """Marked figures whose kind is none."""
    return [found[0] for found in MARKED.finditer(text) if found["kind"].strip() not in KINDS]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        if value == value and abs(value) != float("inf"):
            yield float(value)
    elif isinstance(value, str):
        for found in NUMBER.finditer(value):
            text = found[0].replace(",", "").replace("−", "-").rstrip(" %")
            if re.search(r"\d", text):
                yield float(text)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(str(key))
            yield from _numbers(item)
    else:
        for item in value:
            yield from _numbers(item)
