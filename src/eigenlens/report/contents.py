"""Everything the page holds, section by section."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from altair.utils.schemapi import debug_mode

from ..collapse.plots import charts as collapse_charts
from ..collapse.result import Collapse
from ..reconstruct.evaluation import Evaluation
from ..reconstruct.plan import Plan
from ..reconstruct.tables import sentence as plan_sentence
from ..study.compare import labels_of
from ..study.study import Study
from .figures import Arrays, Figure, figure
from .heads import Heads, heads_of
from .overlaps import Matrix, compared, of_comparison, of_study
from .patterns import Patterns, patterns_of
from .results import Results
from .sentences import bounds_sentence, curve_sentence, layers_sentence, paths_sentence
from .summary import facts_of, model_of, summary_of, target_of
from .tables import Table, collapse_tables, comparison_tables, evaluation_tables, plan_tables, study_tables


@dataclass
class Part:
    """One result, or one view of it: a heading, a sentence made from its numbers, and what shows them."""

    key: str
    title: str
    sentences: list[str]
    kind: str = "pictures"
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    heads: Heads | None = None
    matrices: list[Matrix] = field(default_factory=list)
    patterns: Patterns | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class Section:
    """A chapter of the page; without parts it says what would fill it."""

    key: str
    title: str
    parts: list[Part]
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
    def parts(self) -> list[Part]:
        return [part for section in self.sections for part in section.parts]

    def record(self) -> dict[str, Any]:
        """What the page's script reads, but for the arrays."""
        figures = [f for part in self.parts for f in _figures(part)]
        return {
            "figures": {f.key: f.record() for f in figures},
            "tables": {t.key: t.record() for part in self.parts for t in part.tables},
            "heads": {part.key: part.heads.record for part in self.parts if part.heads is not None},
            "matrices": {part.key: [m.record for m in part.matrices] for part in self.parts if part.matrices},
            "patterns": {part.key: part.patterns.record for part in self.parts if part.patterns is not None},
        }


def _figures(part: Part) -> list[Figure]:
    found = list(part.figures) + [matrix.figure for matrix in part.matrices]
    found += part.heads.figures if part.heads is not None else []
    return found + ([part.patterns.figure] if part.patterns is not None else [])


def contents_of(results: Results, title: str | None, done: Callable[[int], None]) -> Contents:
    """Read all results and put them in order."""
    with debug_mode(False):  # altair checks every row of every chart against its grammar: here that takes most of the time
        return _contents(results, title, done)


def _contents(results: Results, title: str | None, done: Callable[[int], None]) -> Contents:
    arrays = Arrays()
    several = {kind: len(getattr(results, kind)) > 1 for kind in ("studies", "plans", "evaluations", "collapses")}
    heads, overlaps, depths, counted = [], [], [], 0
    for i, (study, label) in enumerate(zip(results.studies, labels_of(results.studies))):
        named = f": {label}" if several["studies"] else ""
        heads.append(_heads_part(study, results, f"heads{i}", f"Layers × heads{named}", arrays))
        overlaps += _overlap_part(study, f"overlap{i}", f"Overlap{named}", arrays)
        if not any(run.facts["model"]["fingerprint"] == study.facts["model"]["fingerprint"] for run in results.collapses):
            depths += _depth_part(study, f"depth{i}", f"Along depth{named}")  # a collapse run shows the same, and more
        counted += 1
        done(counted)
    comparison, why = compared(results.studies)
    if comparison is not None:
        matrices = of_comparison(comparison, "between", arrays)
        sentences = [matrix.sentence for matrix in matrices if matrix.label.startswith("layers")]
        tables = comparison_tables(comparison, "between")
        overlaps.append(Part("between", "Between studies", sentences, "matrices", tables=tables, matrices=matrices))
    elif why:
        overlaps.append(Part("between", "Between studies", [why]))
    plans = [_plan_part(plan, f"plan{i}", several["plans"], arrays) for i, plan in enumerate(results.plans)]
    done(counted := counted + len(plans))
    evaluations = [_evaluation_part(e, f"evaluation{i}") for i, e in enumerate(results.evaluations)]
    collapses = [part for i, run in enumerate(results.collapses) for part in _collapse_parts(run, i, several["collapses"])]
    done(len(results.all))
    sections = [
        Section(
            "heads", "How low-dimensional is each head?", heads,
            "No study was given: `eigenlens study MODEL DATA -o DIR` makes one.",
        ),
        Section(
            "overlap", "Do heads share their directions?", overlaps,
            "There is nothing to compare: that takes a study of rows with two heads or more that see equally many keys.",
        ),
        Section(
            "reconstruction", "How much can be left out?", plans + evaluations,
            "No plan was given: `eigenlens plan STUDY --budget 0.25 -o PLAN` makes one, `eigenlens evaluate` measures it.",
        ),
        Section(
            "collapse", "Why does it not collapse?", collapses + depths,
            "No collapse run was given: `eigenlens collapse MODEL DATA -o DIR` makes one.",
        ),
    ]  # fmt: skip
    named = title or " and ".join(dict.fromkeys(model_of(result) for result in results.all))
    return Contents(named, summary_of(results), sections, [facts_of(result) for result in results.all], arrays)


def _heads_part(study: Study, results: Results, key: str, title: str, arrays: Arrays) -> Part:
    heads = heads_of(study, results, key, arrays)
    tables = study_tables(study, heads.numbers, key)
    notes = [f"{note}." for note in study.facts["notes"]]
    return Part(key, title, [layers_sentence(heads.numbers)], "heads", tables=tables, heads=heads, notes=notes)


def _overlap_part(study: Study, key: str, title: str, arrays: Arrays) -> list[Part]:
    matrices = of_study(study, key, arrays)
    return [Part(key, title, [matrices[0].sentence], "matrices", matrices=matrices)] if matrices else []


def _depth_part(study: Study, key: str, title: str) -> list[Part]:
    if not study.has("depth") or not study.depth.numbers:
        return []
    sentence = study.depth.sentence
    drawn = figure(key, study.depth.plot(), "Tokens and patterns along depth", f"Small line charts. {sentence}")
    return [Part(key, title, [sentence], figures=[drawn])]


def _plan_part(plan: Plan, key: str, several: bool, arrays: Arrays) -> Part:
    title = ("Error against budget" if plan.blocks is None else "What each head keeps") + (
        f": {model_of(plan)}, {target_of(plan.facts)}" if several else ""
    )
    sentences = [curve_sentence(plan) or plan_sentence(plan)]
    name = (
        "What is left of the patterns at a budget" if plan.blocks is None else "Share of causal attention that each head keeps"
    )
    drawn = figure(f"{key}-budgets", plan.plot(), name, f"{name}. {sentences[-1]}")
    examples = None
    if plan.examples is not None:
        examples = patterns_of(
            plan.examples, f"{key}-patterns", plan.facts["target"].get("budget") or plan.work, plan.length, arrays
        )
    return Part(key, title, sentences, "plan", [drawn], plan_tables(plan, key), patterns=examples)


def _evaluation_part(evaluation: Evaluation, key: str) -> Part:
    drawn = figure(key, evaluation.plot(), "What every head loses under the plan", f"A heat map. {evaluation.sentence}")
    notes = [f"{note}." for note in evaluation.facts["notes"]]
    tables = evaluation_tables(evaluation, key)
    return Part(
        key,
        f"The planned model ({target_of(evaluation.facts['plan'])}): {evaluation.name}",
        [evaluation.sentence],
        figures=[drawn],
        tables=tables,
        notes=notes,
    )


COLLAPSE = {
    "residual": "How far the tokens are from one vector, by variant",
    "metrics": "The model itself: tokens and patterns along depth",
    "paths": "The output by path length",
    "path-residuals": "Rank along paths",
    "bounds": "Bounds of every head",
}


def _collapse_parts(run: Collapse, number: int, several: bool) -> list[Part]:
    """Curves, paths and bounds, each with its sentence."""
    named = f": {run.name}" if several else ""
    charts, tables = collapse_charts(run), collapse_tables(run, f"collapse{number}")
    notes = [f"{note}." for note in run.facts["notes"]]
    if not run.facts["float64"]:
        notes.append("values below about 1e-06 are the rounding of single precision; a run with --float64 goes below it.")

    def part(name: str, title: str, sentence: str, pictures: tuple[str, ...], rows: tuple[str, ...]) -> list[Part]:
        key = f"collapse{number}-{name}"
        figures = [
            figure(f"{key}-{picture}", charts[picture], COLLAPSE[picture], f"{COLLAPSE[picture]}. {sentence}")
            for picture in pictures if picture in charts
        ]  # fmt: skip
        mine = [table for table in tables if table.key.rpartition("-")[2] in rows]
        return [Part(key, title + named, [sentence], figures=figures, tables=mine)] if figures else []

    found = part("curves", "Depth by variant", run.sentence, ("residual", "metrics"), ("residual", "without"))
    found[0].notes = notes
    if run.paths:
        found += part("paths", "Path lengths", paths_sentence(run), ("paths", "path-residuals"), ("lengths", "single"))
    if run.bounds:
        found += part("bounds", "Bounds", bounds_sentence(run), ("bounds",), ("layers", "bounds", "composed"))
    return found
