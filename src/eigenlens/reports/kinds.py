"""How each kind of result stands on the page: its parts by section, its lines of the summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..collapses.result import Collapse
from ..diagnostics.roles import roles_sentence
from ..display import numbered
from ..explanations.result import Explanation
from ..passes.facts import ModelResult
from ..plans.evaluation import Evaluation
from ..plans.result import Plan
from ..plans.target import target_label
from ..spectra.sentences import dimension_sentence
from ..studies.make_comparison import labels_of
from ..studies.result import Study
from .diagnoses import diagnosis_parts
from .figures import Arrays
from .names import Names
from .parts import (
    PagePart,
    collapse_parts,
    depth_parts,
    evaluation_part,
    explanation_part,
    heads_part,
    overlap_parts,
    plan_part,
)
from .results import Results, weights_of

Parts = Iterator[tuple[str, list[PagePart]]]
"""Keys of sections, and parts that belong there."""
Lines = Iterator[tuple[str, str]]
"""Questions of a reader in a hurry, and answers."""


@dataclass
class Page:
    """What the parts of a page are made with."""

    results: Results
    names: Names
    arrays: Arrays = field(default_factory=Arrays)

    def named(self, whose: str, kind: list[Any]) -> str:
        """Behind a title: whose this is.

        Where there is more than one model, or more than one result of the kind.
        """
        return f": {whose}" if self.names.several or len(kind) > 1 else ""

    def about(self, result: ModelResult, kind: list[Any], more: str = "") -> str:
        """Before a line: which of several results, or of several models, it is about."""
        several = self.names.several or len(kind) > 1
        return f"{self.names.full_name(result)}{f', {more}' if more else ''}: " if several else ""


def _study_parts(page: Page, study: Study, number: int) -> Parts:
    studies = page.results.studies
    label = labels_of(studies)[number]
    mine = page.named(page.names.relabelled(label, study), studies)
    title = f"Layers × heads{mine}"
    yield "heads", [heads_part(study, page.results, f"heads{number}", title, page.arrays)]
    yield "overlap", overlap_parts(study, f"overlap{number}", f"Overlap{mine}", page.arrays)
    # a collapse run of the same weights shows the same, and more
    if not any(weights_of(run) == weights_of(study) for run in page.results.collapses):
        yield "depth", depth_parts(study, f"depth{number}", f"Along depth{mine}")
    yield "diagnostics", diagnosis_parts(study, f"diagnosis{number}", mine)


def _study_lines(page: Page, study: Study) -> Lines:
    facts, whose = study.facts, page.about(study, page.results.studies)
    yield (
        "What was studied",
        f"{page.names.full_name(study)}: {_size(study)}, {facts.inputs} inputs of {study.length}"
        f" tokens, {facts.data.inputs_held_out} of them held out.",
    )
    message = dimension_sentence(study.spectra) or "This study holds no spectra."
    yield "How low-dimensional", f"{whose}{message}"
    if does := roles_sentence(study.diagnostics):
        yield "What the heads do", f"{whose}{does}"


def _size(study: Study) -> str:
    """Such as `72 heads in 6 layers`, stack by stack where there are several."""
    stacks: dict[str, list[int]] = {}
    for site in study.ordered_sites:
        stacks.setdefault(site.stack, []).append(study.sites[site].heads)
    message = []
    for stack, heads in stacks.items():
        layers = numbered(len(heads), "layer") + (
            f" of {study.labels.stack(stack)}" if len(stacks) > 1 else ""
        )
        message.append(f"{numbered(sum(heads), 'head')} in {layers}")
    return ", ".join(message)


def _collapse_parts(page: Page, run: Collapse, number: int) -> Parts:
    mine = page.named(page.names.full_name(run), page.results.collapses)
    yield "collapse", collapse_parts(run, number, mine)


def _collapse_lines(page: Page, run: Collapse) -> Lines:
    yield "Where it would collapse", page.about(run, page.results.collapses) + run.sentence


def _plan_parts(page: Page, plan: Plan, number: int) -> Parts:
    whose = f"{page.names.model(plan)}, {target_label(plan.target)}"
    mine = page.named(whose, page.results.plans)
    yield "reconstruction", [plan_part(plan, f"plan{number}", mine, page.arrays)]


def _plan_lines(page: Page, plan: Plan) -> Lines:
    whose = page.about(plan, page.results.plans, target_label(plan.target))
    yield "What the plan saves", whose + plan.sentence


def _evaluation_parts(page: Page, found: Evaluation, number: int) -> Parts:
    part = evaluation_part(found, f"evaluation{number}", page.names.full_name(found))
    yield "reconstruction", [part]


def _evaluation_lines(page: Page, found: Evaluation) -> Lines:
    whose = page.about(found, page.results.evaluations, target_label(found.target))
    yield "At what loss", whose + found.sentence


def _explanation_parts(page: Page, found: Explanation, number: int) -> Parts:
    title = page.names.relabelled(found.name, found)
    yield "explanations", [explanation_part(found, f"explanation{number}", title)]


def _explanation_lines(page: Page, found: Explanation) -> Lines:
    yield f"Which tokens decide in {page.names.model(found)}", found.sentence


@dataclass(frozen=True)
class PageKind:
    """One kind of result: where the page finds it, its parts, its lines of the summary."""

    results: Callable[[Results], list[Any]]
    parts: Callable[[Page, Any, int], Parts]
    lines: Callable[[Page, Any], Lines]


PAGE_KINDS = (
    PageKind(lambda found: found.studies, _study_parts, _study_lines),
    PageKind(lambda found: found.collapses, _collapse_parts, _collapse_lines),
    PageKind(lambda found: found.plans, _plan_parts, _plan_lines),
    PageKind(lambda found: found.evaluations, _evaluation_parts, _evaluation_lines),
    PageKind(lambda found: found.explanations, _explanation_parts, _explanation_lines),
)
"""In the order of the summary."""
