"""The page in a few lines: what a reader in a hurry wants to know, and what everything was made
from.
"""

from __future__ import annotations

from typing import Any

from ..diagnostics.roles import roles_sentence
from ..display import numbered
from ..plans.tables import sentence as plan_sentence
from ..studies.result import Study
from ..studies.tables import sentence as study_sentence
from .names import Names, all_data_of
from .results import Results


def summary_of(results: Results, names: Names) -> list[tuple[str, str]]:
    """What a reader in a hurry wants to know, question and answer."""

    def of(result: Any, all_of_kind: list[Any], more: str = "") -> str:
        """Which of several results, or of several models, a line is about."""
        message = names.several or len(all_of_kind) > 1
        return f"{names.whole(result)}{f', {more}' if more else ''}: " if message else ""

    lines = []
    for study in results.studies:
        facts = study.facts
        lines.append(
            (
                "What was studied",
                (
                    f"{names.whole(study)}: {_size(study)}, {facts['inputs']} inputs of"
                    f" {study.length} tokens, {facts['data']['inputs_held_out']} of them held out."
                ),
            )
        )
        message = study_sentence(study) or "This study holds no spectra."
        lines.append(("How low-dimensional", f"{of(study, results.studies)}{message}"))
        if does := roles_sentence(study.diagnostics):
            lines.append(("What the heads do", f"{of(study, results.studies)}{does}"))
    lines += [
        ("Where it would collapse", f"{of(run, results.collapses)}{run.sentence}")
        for run in results.collapses
    ]
    lines += [
        (
            "What the plan saves",
            f"{of(plan, results.plans, target_of(plan.facts))}{plan_sentence(plan)}",
        )
        for plan in results.plans
    ]
    for e in results.evaluations:
        lines.append(
            ("At what loss", of(e, results.evaluations, target_of(e.facts["plan"])) + e.sentence)
        )
    lines += [
        (f"Which tokens decide in {names.model(found)}", found.sentence)
        for found in results.explanations
    ]
    return lines


def _size(study: Study) -> str:
    """Such as `72 heads in 6 layers`, stack by stack where there are several."""
    stacks: dict[str, list[int]] = {}
    for site in study.ordered_sites:
        stacks.setdefault(site.rpartition("/")[0], []).append(study.sites[site].heads)
    message = []
    for stack, heads in stacks.items():
        layers = numbered(len(heads), "layer") + (f" of {stack}" if len(stacks) > 1 else "")
        message.append(f"{numbered(sum(heads), 'head')} in {layers}")
    return ", ".join(message)


def facts_of(result: Any, names: Names) -> dict[str, Any]:
    """How a result was made: one row of the last table; of its data every name."""
    facts = result.facts
    return {
        "result": type(result).__name__.lower(),
        "model": names.model(result),
        "data": all_data_of(result),
        "length": facts["length"],
        "inputs": facts.get("inputs"),
        "seconds": facts.get("seconds"),
        "created": facts.get("created"),
        "versions": (
            ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
            or None
        ),
        "notes": "; ".join(facts.get("notes", [])) or None,
    }


def target_of(facts: dict[str, Any]) -> str:
    """What a plan was made for, such as `budget 0.25`, or which mechanism took its place."""
    if "attention" in facts["target"]:
        return f"{facts['target']['attention']} attention"
    return ", ".join(
        f"{name} {value:g}"
        for name, value in facts["target"].items()
        if isinstance(value, int | float)
    )
