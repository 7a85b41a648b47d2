"""Every kind of result: what `eigenlens show` opens, and what a page can show."""

from __future__ import annotations

from pathlib import Path

from ..bench import Bench
from ..collapses import Collapse
from ..explanations import Explanation
from ..lab import TrainingRun
from ..papers import Reproduction
from ..plans import Evaluation, Plan
from ..studies import Comparison, Study
from ..studies.plots import draw
from . import views
from .head_numbers import collapse_numbers, evaluation_numbers, plan_numbers
from .results import Kind, PageView

STUDY = Kind(
    "study",
    Study,
    "a study",
    "studies",
    PageView(views.study_parts, views.study_lines, 1, together=views.studies_together),
    identity=lambda study: study.folder.resolve(),
    draw_all=draw,
)
KINDS = (
    STUDY,
    Kind(
        "comparison",
        Comparison,
        "a comparison",
        "comparisons",
        stands_for=lambda comparison: (study.open() for study in comparison.studies),
    ),
    Kind(
        "plan",
        Plan,
        "a plan",
        "plans",
        PageView(views.plan_parts, views.plan_lines, 3, head_numbers=plan_numbers),
    ),
    Kind(
        "evaluation",
        Evaluation,
        "an evaluation",
        "evaluations",
        PageView(
            views.evaluation_parts, views.evaluation_lines, 4, head_numbers=evaluation_numbers
        ),
    ),
    Kind(
        "collapse",
        Collapse,
        "a collapse run",
        "collapse runs",
        PageView(views.collapse_parts, views.collapse_lines, 2, head_numbers=collapse_numbers),
    ),
    Kind(
        "explanation",
        Explanation,
        "an explanation",
        "explanations",
        PageView(views.explanation_parts, views.explanation_lines, 5),
    ),
    Kind("run", TrainingRun, "a training run", "training runs"),
    Kind("bench", Bench, "a bench", "benches"),
    Kind("reproduction", Reproduction, "a reproduction", "reproductions"),
)
ON_PAGE = tuple(kind for kind in KINDS if kind.on_page)


def kinds_in(folder: Path) -> list[Kind]:
    """The kinds of results that a folder holds."""
    return [kind for kind in KINDS if (folder / kind.file).is_file()]


def file_names(kinds: tuple[Kind, ...]) -> str:
    return ", ".join(kind.file for kind in kinds)
