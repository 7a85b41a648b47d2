"""Everything the page holds, section by section."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from altair.utils.schemapi import debug_mode

from ..studies.comparison import labels_of
from .diagnoses import diagnosis_parts
from .figures import Arrays
from .names import Names, all_data_of, data_of
from .parts import (
    PagePart,
    between_parts,
    collapse_parts,
    depth_parts,
    evaluation_part,
    explanation_part,
    heads_part,
    overlap_parts,
    plan_part,
)
from .results import Results, weights_of
from .summary import facts_of, summary_of, target_of


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
    arrays, names = Arrays(), Names.of(results)

    def named(whose: str, kind: list[Any]) -> str:
        """Behind a title: whose this is, where there is more than one model, or more than one
        result of the kind.
        """
        return f": {whose}" if names.several or len(kind) > 1 else ""

    heads, overlaps, depths, diagnoses = [], [], [], []
    for i, (study, label) in enumerate(zip(results.studies, labels_of(results.studies))):
        mine = named(names.relabelled(label, study), results.studies)
        heads += marked(
            [heads_part(study, results, f"heads{i}", f"Layers × heads{mine}", arrays)], study, names
        )
        overlaps += marked(
            overlap_parts(study, f"overlap{i}", f"Overlap{mine}", arrays), study, names
        )
        # which shows the same, and more
        if not any(weights_of(run) == weights_of(study) for run in results.collapses):
            depths += marked(depth_parts(study, f"depth{i}", f"Along depth{mine}"), study, names)
        diagnoses += marked(diagnosis_parts(study, f"diagnosis{i}", mine), study, names)
        done(i + 1)
    overlaps += between_parts(results.studies, arrays)
    plans, evaluations, collapses, explanations = [], [], [], []
    for i, plan in enumerate(results.plans):
        mine = named(f"{names.model(plan)}, {target_of(plan.facts)}", results.plans)
        plans += marked([plan_part(plan, f"plan{i}", mine, arrays)], plan, names)
    done(len(results.studies) + len(plans))
    for i, evaluation in enumerate(results.evaluations):
        evaluations += marked(
            [evaluation_part(evaluation, f"evaluation{i}", names.whole(evaluation))],
            evaluation,
            names,
        )
    for i, run in enumerate(results.collapses):
        collapses += marked(
            collapse_parts(run, i, named(names.whole(run), results.collapses)), run, names
        )
    for i, found in enumerate(results.explanations):
        explanations += marked(
            [explanation_part(found, f"explanation{i}", names.relabelled(found.name, found))],
            found,
            names,
        )
    done(len(results.all))
    sections = [
        Section(
            "heads",
            "How low-dimensional is each head?",
            heads,
            "No study was given: `eigenlens study MODEL DATA -o DIR` makes one.",
        ),
        Section(
            "diagnostics",
            "What do the heads and layers do?",
            diagnoses,
            "No study with diagnostics was given: `eigenlens study MODEL DATA -o DIR` makes one.",
        ),
        Section(
            "overlap",
            "Do heads share their directions?",
            overlaps,
            "There is nothing to compare: that takes a study of rows with two heads or more that"
            " see equally many keys.",
        ),
        Section(
            "reconstruction",
            "How much can be left out?",
            plans + evaluations,
            "No plan was given: `eigenlens plan STUDY --budget 0.25 -o PLAN` makes one, `eigenlens"
            " evaluate` measures it.",
        ),
        Section(
            "collapse",
            "Why does it not collapse?",
            collapses + depths,
            "No collapse run was given: `eigenlens collapse MODEL DATA -o DIR` makes one.",
        ),
        Section(
            "explanations",
            "Which tokens decide?",
            explanations,
            "No explanation was given: `eigenlens explain MODEL TEXT -o DIR` makes one.",
        ),
    ]
    # one input says nothing of what the other sections ask
    if len(results.explanations) == len(results.all):
        sections = sections[-1:]
    facts = [facts_of(result, names) for result in results.all]
    return Contents(title or names.title, summary_of(results, names), sections, facts, arrays)


def marked(parts: list[PagePart], result: Any, names: Names) -> list[PagePart]:
    """The parts of a result, each with its model where the page has several, and with all names of
    data that are many.
    """
    few, every = data_of(result), all_data_of(result)
    for part in parts:
        part.model = names.model(result) if names.several else ""
        part.data = every if few != every and few in part.title else ""
    return parts
