"""The parts of the page, one or more per result."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..collapses.plots import charts as collapse_charts
from ..collapses.result import Collapse
from ..explanations.result import Explanation
from ..passes.facts import ModelResult
from ..plans.evaluation import Evaluation
from ..plans.result import Plan
from ..plans.target import target_label
from ..shell import option
from ..spectra.plots import growth_curves
from ..spectra.sentences import ALL_ROWS, masked_rows
from ..studies.result import Study
from ..studies.side_by_side import dimension_rows, readable, without_terms
from ..studies.side_by_side_chart import dimension_chart
from .explanations import Tokens, deletion_figures, explanation_tables, tokens_of
from .figures import Arrays, Figure, figure
from .heads import Heads, heads_of
from .overlaps import Matrix, compared, of_comparison, of_study
from .patterns import Patterns, patterns_of
from .results import Results
from .sentences import bounds_sentence, curve_sentence, layers_sentence, paths_sentence
from .tables import (
    DIMENSIONS,
    Table,
    collapse_tables,
    comparison_tables,
    evaluation_tables,
    plan_tables,
    study_tables,
)


@dataclass
class PagePart:
    """A part of the page: a heading, sentences, and the pictures and tables of one result."""

    key: str
    title: str
    sentences: list[str]
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    heads: Heads | None = None
    matrices: list[Matrix] = field(default_factory=list)
    patterns: Patterns | None = None
    tokens: Tokens | None = None
    notes: list[str] = field(default_factory=list)
    model: str = ""
    """The model, if the page has several models."""
    data: str = ""
    """The names of the data, if the title says only how many there are."""

    @property
    def all_figures(self) -> list[Figure]:
        """Every picture of the part."""
        found = self.figures + [matrix.figure for matrix in self.matrices]
        found += self.heads.figures if self.heads is not None else []
        return found + ([self.patterns.figure] if self.patterns is not None else [])


def _ended(result: ModelResult) -> list[str]:
    """The notes of a result as sentences."""
    return [f"{note}." for note in result.facts.notes]


def between_parts(studies: list[Study], arrays: Arrays) -> list[PagePart]:
    """The comparison of all studies, or the reason why they cannot be compared."""
    comparison, why = compared(studies)
    if comparison is None:
        return [PagePart("between", "Between studies", [why])] if why else []
    matrices = of_comparison(comparison, "between", arrays)
    sentences = [comparison.sentence] if not matrices else []
    tables = comparison_tables(comparison, "between")
    return [PagePart("between", "Between studies", sentences, tables=tables, matrices=matrices)]


def heads_part(study: Study, results: Results, key: str, title: str, arrays: Arrays) -> PagePart:
    heads = heads_of(study, results, key, arrays)
    tables = study_tables(study, heads.numbers, key)
    notes = _ended(study)
    if masked_rows(study.spectra):
        notes.append(f"{ALL_ROWS}.")
    return PagePart(
        key, title, [layers_sentence(heads.numbers)], tables=tables, heads=heads, notes=notes
    )


def overlap_parts(study: Study, key: str, title: str, arrays: Arrays) -> list[PagePart]:
    matrices = of_study(study, key, arrays)
    # each matrix has its sentence
    return [PagePart(key, title, [], matrices=matrices)] if matrices else []


def within_parts(study: Study, key: str, title: str) -> list[PagePart]:
    """The dimensions of one input, of the weights and over inputs, and growth with length."""
    if not study.has("within") or not study.within.sentence:
        return []
    sentences = [study.within.sentence]
    if bent := without_terms(study):
        sentences.append(bent.strip())
    name = "What is low-dimensional? Dimensions for 90 %, every head"
    text = f"A row of ticks per kind of dimension, one tick per head. {sentences[0]}"
    drawn = [figure(f"{key}-side", dimension_chart(study), name, text)]
    if len(study.within.lengths) > 1:
        name = "Growth with length: components of one input's scores"
        chart = growth_curves(study.within)
        drawn.append(figure(f"{key}-growth", chart, name, f"Lines with bands. {sentences[0]}"))
    found, growth = dimension_rows(study), study.within.growth()
    tables = [
        Table(
            f"{key}-dimensions",
            "Dimensions that hold a share, median of the heads",
            found,
            DIMENSIONS,
            to_read=readable(found),
        ),
        Table(f"{key}-lengths", "One input by its tokens, median of the heads", growth),
    ]
    notes = list(dict.fromkeys(f"{row['words']}: {row['use']}." for row in found))
    return [PagePart(key, title, sentences, figures=drawn, tables=tables, notes=notes)]


def depth_parts(study: Study, key: str, title: str) -> list[PagePart]:
    if not study.has("depth") or not study.depth.numbers:
        return []
    sentence = study.depth.sentence
    drawn = figure(
        key, study.depth.plot(), "Tokens and patterns along depth", f"Small line charts. {sentence}"
    )
    return [PagePart(key, title, [sentence], figures=[drawn])]


def plan_part(plan: Plan, key: str, named: str, arrays: Arrays) -> PagePart:
    title, name = "Error against budget", "How far the patterns move at each budget"
    if not plan.simulated:
        title, name = "What each head computes", "Share of full attention that each head computes"
    sentence = curve_sentence(plan) or plan.sentence
    drawn = figure(f"{key}-budgets", plan.plot(), name, f"{name}. {sentence}")
    shown = None
    if plan.examples is not None:
        target = plan.target.get("budget") or plan.work
        shown = patterns_of(plan.examples, f"{key}-patterns", target, plan.length, arrays)
    return PagePart(key, title + named, [sentence], [drawn], plan_tables(plan, key), patterns=shown)


def evaluation_part(evaluation: Evaluation, key: str, whose: str) -> PagePart:
    drawn = figure(
        key,
        evaluation.plot(),
        "How far every head moves",
        f"A heat map. {evaluation.sentence}",
    )
    notes = _ended(evaluation)
    tables = evaluation_tables(evaluation, key)
    title = f"The changed model ({target_label(evaluation.target)}): {whose}"
    return PagePart(key, title, [evaluation.sentence], [drawn], tables, notes=notes)


def explanation_part(found: Explanation, key: str, title: str) -> PagePart:
    notes = _ended(found)
    figures, tables = deletion_figures(found, key), explanation_tables(found, key)
    return PagePart(
        key, title, [found.sentence], figures, tables, tokens=tokens_of(found), notes=notes
    )


COLLAPSE = {
    "residual": "How far the tokens are from one vector, by variant (SAN: attention alone)",
    "metrics": "The model with all its parts: tokens and patterns along depth",
    "paths": "The output by path length",
    "path-residuals": "How far from one vector: sums of paths, and patterns of single paths",
    "bounds": "Spread of scores (max D) and Dobrushin coefficient of every head",
}


def collapse_run_parts(run: Collapse, number: int, named: str) -> list[PagePart]:
    """The parts of a collapse run: curves, paths and bounds, each with its sentence."""
    charts, tables = collapse_charts(run), collapse_tables(run, f"collapse{number}")
    notes = _ended(run)
    if not run.float64:
        notes.append(
            f"residuals below {run.floor:.1e} are rounding errors; a run with {option('float64')}"
            " can measure smaller ones."
        )

    def part(
        name: str, title: str, sentence: str, pictures: tuple[str, ...], rows: tuple[str, ...]
    ) -> list[PagePart]:
        key = f"collapse{number}-{name}"
        figures = [
            figure(
                f"{key}-{picture}",
                charts[picture],
                COLLAPSE[picture],
                f"{COLLAPSE[picture]}. {sentence}",
            )
            for picture in pictures
            if picture in charts
        ]
        mine = [tables[name] for name in rows if name in tables]
        return (
            [PagePart(key, title + named, [sentence], figures=figures, tables=mine)]
            if figures
            else []
        )

    found = part(
        "curves",
        "Tokens along depth, with parts switched off",
        run.sentence,
        ("residual", "metrics"),
        ("residual", "without"),
    )
    found[0].notes = notes
    if run.paths:
        found += part(
            "paths",
            "Output by path length",
            paths_sentence(run),
            ("paths", "path-residuals"),
            ("lengths", "single"),
        )
    if run.bounds:
        found += part(
            "bounds",
            "Bounds on the collapse",
            bounds_sentence(run),
            ("bounds",),
            ("layers", "bounds", "composed"),
        )
    return found
