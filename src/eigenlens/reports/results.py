"""What a page is made from: results, or the folders that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..collapses.result import Collapse
from ..errors import EigenlensError
from ..explanations.result import Explanation
from ..passes.facts import ModelResult
from ..plans.evaluation import Evaluation
from ..plans.result import Plan
from ..studies.comparison import Comparison
from ..studies.result import Study

KINDS: dict[str, Any] = {
    "study": Study,
    "plan": Plan,
    "evaluation": Evaluation,
    "collapse": Collapse,
    "explanation": Explanation,
    "comparison": Comparison,
}
"""A folder holds what its file `study.json`, `plan.json`, … says.

Of a comparison the page shows its studies.
"""
Reportable = Study | Comparison | Plan | Evaluation | Collapse | Explanation


@dataclass
class Results:
    """All results of a page, by kind, in the order they were given."""

    studies: list[Study] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    collapses: list[Collapse] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)

    def add(self, result: Reportable) -> None:
        if isinstance(result, Comparison):
            for study in result.studies:
                self.add(study.open())
            return
        kinds: dict[type, list[Any]] = {
            Study: self.studies,
            Plan: self.plans,
            Evaluation: self.evaluations,
            Collapse: self.collapses,
            Explanation: self.explanations,
        }
        known = kinds.get(type(result))
        if known is None:
            raise EigenlensError(
                "a report shows studies, comparisons, plans, evaluations, collapse runs and"
                f" explanations, not {result!r}"
            )
        if not any(_same(result, other) for other in known):
            known.append(result)

    @property
    def all(self) -> list[ModelResult]:
        return [*self.studies, *self.plans, *self.evaluations, *self.collapses, *self.explanations]


def weights_of(result: ModelResult) -> str | None:
    """The fingerprint of a result's weights, if known.

    It tells which results belong together.
    """
    return result.facts.model.fingerprint


def _same(one: Any, other: Any) -> bool:
    """An object is the same as itself, a study also as another view of its folder."""
    if one is other:
        return True
    return isinstance(one, Study) and one.folder.resolve() == other.folder.resolve()


def gather(given: Iterable[Reportable | str | Path]) -> Results:
    """Open every folder.

    One without a result of its own stands for those in the folders inside it, as `demo` makes them.
    """
    found, seen = Results(), set()
    for result in given:
        if not isinstance(result, str | Path):
            found.add(result)
            continue
        for folder in _folders(Path(result)):
            for kind, opens in KINDS.items():
                place = (folder.resolve(), kind)
                if place not in seen and (folder / f"{kind}.json").is_file():
                    seen.add(place)
                    found.add(opens.open(folder))
    if not found.all:
        kinds = "a study, a plan, an evaluation, a collapse run or an explanation"
        raise EigenlensError(f"nothing to report; give the folder of {kinds}")
    return found


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise EigenlensError(f"no such folder: {folder}")
    if _holds(folder):
        return [folder]
    if any(folder.glob("unfinished*")):
        Study.open(folder)  # says that it was interrupted
    inside = [part for part in sorted(folder.iterdir()) if part.is_dir() and _holds(part)]
    if not inside:
        files = ", ".join(f"{kind}.json" for kind in KINDS)
        raise EigenlensError(
            f"{folder} holds no result of eigenlens, nor does a folder inside it (none of {files})"
        )
    return inside


def _holds(folder: Path) -> bool:
    return any((folder / f"{kind}.json").is_file() for kind in KINDS)
