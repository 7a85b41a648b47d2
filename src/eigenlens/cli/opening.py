"""The result in a folder, of whatever kind it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import EigenlensError


def open_result(folder: Path) -> tuple[str, Any]:
    """The kind of the result in a folder, and the result.

    Its file `study.json`, `plan.json`, … says which kind it is.
    """
    from .. import bench, collapses, explanations, lab, papers, plans, studies

    kinds: dict[str, Any] = {
        "study": studies.Study,
        "comparison": studies.Comparison,
        "plan": plans.Plan,
        "evaluation": plans.Evaluation,
        "collapse": collapses.Collapse,
        "explanation": explanations.Explanation,
        "run": lab.TrainingRun,
        "bench": bench.Bench,
        "reproduction": papers.Reproduction,
    }
    for kind, result in kinds.items():
        if (folder / f"{kind}.json").is_file():
            return kind, result.open(folder)
    if folder.is_dir() and not any(folder.glob("unfinished*")):
        files = ", ".join(f"{kind}.json" for kind in kinds)
        raise EigenlensError(f"{folder} is no study and no other result (it has none of {files})")
    return "study", studies.Study.open(folder)  # says what is wrong with the folder
