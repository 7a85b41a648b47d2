"""Everything the page holds, section by section."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from altair.utils.schemapi import debug_mode

from ..passes.facts import ModelResult
from .figures import Arrays
from .kinds import PAGE_KINDS, Page
from .names import Names, all_data_of, data_of
from .parts import PagePart, between_parts
from .results import Results
from .summary import facts_of, summary_of


@dataclass
class Section:
    """A chapter of the page; without parts it says what would fill it."""

    key: str
    title: str
    parts: list[PagePart]
    missing: str = ""


@dataclass
class Contents:
    """The whole page: `summary` are the lines on top, `facts` what the results were made from."""

    title: str
    summary: list[tuple[str, str]]
    sections: list[Section]
    facts: list[dict[str, Any]]
    arrays: Arrays

    @property
    def parts(self) -> list[PagePart]:
        return [part for section in self.sections for part in section.parts]

    def record(self) -> dict[str, Any]:
        """What the page's script reads, but for the arrays."""
        figures = [f for part in self.parts for f in part.all_figures]
        shown = [
            (part, [f.key for f in part.all_figures] + [t.key for t in part.tables])
            for part in self.parts
        ]
        return {
            "models": {key: part.model for part, keys in shown for key in keys if part.model},
            "figures": {f.key: f.record() for f in figures},
            "tables": {t.key: t.record() for part in self.parts for t in part.tables},
            "heads": {part.key: part.heads.record for part in self.parts if part.heads is not None},
            "matrices": {
                part.key: [m.record for m in part.matrices] for part in self.parts if part.matrices
            },
            "patterns": {
                part.key: part.patterns.record for part in self.parts if part.patterns is not None
            },
        }


def contents_of(results: Results, title: str | None, done: Callable[[int], None]) -> Contents:
    """Read all results and put them in order."""
    # altair checks every row of every chart against its grammar: here that takes most of the time
    with debug_mode(False):
        return _contents(results, title, done)


def _contents(results: Results, title: str | None, done: Callable[[int], None]) -> Contents:
    page, number = Page(results, Names.of(results)), 0
    found: dict[str, list[PagePart]] = defaultdict(list)
    for kind in PAGE_KINDS:
        for i, result in enumerate(kind.results(results)):
            for section, parts in kind.parts(page, result, i):
                found[section] += marked(parts, result, page.names)
            done(number := number + 1)
    found["overlap"] += between_parts(results.studies, page.arrays)
    sections = [
        Section(
            "heads",
            "How low-dimensional is each head?",
            found["heads"],
            "No study was given: `eigenlens study MODEL DATA -o DIR` makes one.",
        ),
        Section(
            "diagnostics",
            "What do the heads and layers do?",
            found["diagnostics"],
            "No study with diagnostics was given: `eigenlens study MODEL DATA -o DIR` makes one.",
        ),
        Section(
            "overlap",
            "Do heads share their directions?",
            found["overlap"],
            "There is nothing to compare: that takes a study of rows with two heads or more that"
            " see equally many keys.",
        ),
        Section(
            "reconstruction",
            "How much can be left out?",
            found["reconstruction"],
            "No plan was given: `eigenlens plan STUDY --budget 0.25 -o PLAN` makes one, `eigenlens"
            " evaluate` measures it.",
        ),
        Section(
            "collapse",
            "Why does it not collapse?",
            found["collapse"] + found["depth"],
            "No collapse run was given: `eigenlens collapse MODEL DATA -o DIR` makes one.",
        ),
        Section(
            "explanations",
            "Which tokens decide?",
            found["explanations"],
            "No explanation was given: `eigenlens explain MODEL TEXT -o DIR` makes one.",
        ),
    ]
    # one input says nothing of what the other sections ask
    if len(results.explanations) == len(results.all):
        sections = sections[-1:]
    facts = [facts_of(result, page.names) for result in results.all]
    return Contents(title or page.names.title, summary_of(page), sections, facts, page.arrays)


def marked(parts: list[PagePart], result: ModelResult, names: Names) -> list[PagePart]:
    """The parts of a result.

    Each with its model where the page has several, and with all names of data that are many.
    """
    few, every = data_of(result), all_data_of(result)
    for part in parts:
        part.model = names.model(result) if names.several else ""
        part.data = every if few != every and few in part.title else ""
    return parts
