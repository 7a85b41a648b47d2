"""Everything the page holds, section by section."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from altair.utils.schemapi import debug_mode

from ..passes.facts import ModelResult
from .figures import Arrays
from .names import Names, all_data_of, data_of
from .parts import PagePart
from .results import Results
from .sections import SECTIONS, Section
from .summary import facts_of, summary_of
from .views import Page


@dataclass
class Contents:
    """The content of a page: `summary` are its first lines, `facts` its last table."""

    title: str
    summary: list[tuple[str, str]]
    sections: list[Section]
    facts: list[dict[str, Any]]
    arrays: Arrays

    @property
    def parts(self) -> list[PagePart]:
        return [part for section in self.sections for part in section.parts]

    def record(self) -> dict[str, Any]:
        """What the script of the page reads, without the arrays."""
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
    """Read all results and sort them into the sections of the page."""
    # altair checks every row of every chart against its grammar: here that takes most of the time
    with debug_mode(False):
        return _contents(results, title, done)


def _contents(results: Results, title: str | None, done: Callable[[int], None]) -> Contents:
    page, number = Page(results, Names.of(results)), 0
    found: dict[str, list[PagePart]] = {key: [] for section in SECTIONS for key in section.keys}
    for view, each in results.views:
        for i, result in enumerate(each):
            for key, parts in view.parts(page, result, i):
                found[key] += marked(parts, result, page.names)
            done(number := number + 1)
    for view, _ in results.views:
        for key, parts in view.together(page):
            found[key] += parts
    sections = [
        replace(section, parts=[part for key in section.keys for part in found[key]])
        for section in SECTIONS
    ]
    # one input says nothing of what the other sections ask
    if all(result.facts.data.is_input for result in results.all):
        sections = [section for section in sections if section.parts]
    facts = [facts_of(result, page.names) for result in results.all]
    return Contents(title or page.names.title, summary_of(page), sections, facts, page.arrays)


def marked(parts: list[PagePart], result: ModelResult, names: Names) -> list[PagePart]:
    """The parts of a result.

    Each has its model if the page has several, and all names of its data if there are many.
    """
    few, every = data_of(result), all_data_of(result)
    for part in parts:
        part.model = names.model(result) if names.several else ""
        part.data = every if few != every and few in part.title else ""
    return parts
