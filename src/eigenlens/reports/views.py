"""What the page shows of each kind of result: parts of sections, lines of the summary."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..collapses.result import Collapse
from ..diagnostics.roles import roles_sentence
from ..display import numbered
from ..explanations.result import Explanation
from ..passes.facts import ModelResult
from ..plans.evaluation import Evaluation
from ..plans.result import Plan
from ..plans.target import target_label
from ..studies.make_comparison import labels_of
from ..studies.result import Study
from ..studies.side_by_side import two_sentences
from .diagnoses import diagnosis_parts
from .figures import Arrays
from .names import Names
from .parts import (
    between_parts,
    collapse_run_parts,
    depth_parts,
    evaluation_part,
    explanation_part,
    heads_part,
    overlap_parts,
    plan_part,
    within_parts,
)
from .results import Lines, Parts, Results, weights_of


@dataclass
class Page:
    """What is needed to make the parts of a page."""

    results: Results
    names: Names
    arrays: Arrays = field(default_factory=Arrays)

    def named(self, result: ModelResult, whose: str) -> str:
        """The end of a title that says which result it is about.

        Empty if there is only one model and one result of the kind.
        """
        return f": {whose}" if self._several(result) else ""

    def about(self, result: ModelResult, more: str = "") -> str:
        """The beginning of a line that says which of several results it is about."""
        full_name = f"{self.names.full_name(result)}{f', {more}' if more else ''}: "
        return full_name if self._several(result) else ""

    def _several(self, result: ModelResult) -> bool:
        return self.names.several or len(self.results.of(type(result))) > 1


def study_parts(page: Page, study: Study, number: int) -> Parts:
    label = labels_of(page.results.of(Study))[number]
    mine = page.named(study, page.names.relabelled(label, study))
    title = f"Layers × heads{mine}"
    yield "heads", [heads_part(study, page.results, f"heads{number}", title, page.arrays)]
    yield "heads", within_parts(study, f"within{number}", f"Within one input{mine}")
    yield "overlap", overlap_parts(study, f"overlap{number}", f"Overlap{mine}", page.arrays)
    # a collapse run of the same weights shows the same, and more
    if not any(weights_of(run) == weights_of(study) for run in page.results.of(Collapse)):
        yield "depth", depth_parts(study, f"depth{number}", f"Tokens along depth{mine}")
    yield "diagnostics", diagnosis_parts(study, f"diagnosis{number}", mine)


def studies_together(page: Page) -> Parts:
    yield "overlap", between_parts(page.results.of(Study), page.arrays)


def study_lines(page: Page, study: Study) -> Lines:
    facts, whose = study.facts, page.about(study)
    yield (
        "What was studied",
        f"{page.names.full_name(study)}: {_size(study)}, {facts.inputs} inputs of {study.length}"
        f" tokens, {facts.data.inputs_held_out} of them held out.",
    )
    message = two_sentences(study) or "This study has no spectra."
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


def collapse_parts(page: Page, run: Collapse, number: int) -> Parts:
    mine = page.named(run, page.names.full_name(run))
    yield "collapse", collapse_run_parts(run, number, mine)


def collapse_lines(page: Page, run: Collapse) -> Lines:
    yield "Where it would collapse", page.about(run) + run.sentence


def plan_parts(page: Page, plan: Plan, number: int) -> Parts:
    whose = f"{page.names.model(plan)}, {target_label(plan.target)}"
    mine = page.named(plan, whose)
    yield "reconstruction", [plan_part(plan, f"plan{number}", mine, page.arrays)]


def plan_lines(page: Page, plan: Plan) -> Lines:
    whose = page.about(plan, target_label(plan.target))
    yield "What the plan saves", whose + plan.sentence


def evaluation_parts(page: Page, found: Evaluation, number: int) -> Parts:
    part = evaluation_part(found, f"evaluation{number}", page.names.full_name(found))
    yield "reconstruction", [part]


def evaluation_lines(page: Page, found: Evaluation) -> Lines:
    whose = page.about(found, target_label(found.target))
    yield "What is lost", whose + found.sentence


def explanation_parts(page: Page, found: Explanation, number: int) -> Parts:
    title = page.names.relabelled(found.name, found)
    yield "explanations", [explanation_part(found, f"explanation{number}", title)]


def explanation_lines(page: Page, found: Explanation) -> Lines:
    yield f"Which tokens decide in {page.names.model(found)}", found.sentence
