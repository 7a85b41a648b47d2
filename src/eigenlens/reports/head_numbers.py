"""Every number that any result has of a head, side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..captures import Head, Site, location_of
from ..collapses.bounds import LARGEST_D
from ..collapses.result import Collapse
from ..estimators.estimator import settings_label
from ..plans.evaluation import Evaluation
from ..plans.result import Plan
from ..studies.result import Study
from .results import HeadNumbers, Results, weights_of

METRICS = {
    "rows_centred_held_out_dimension_90": "dimensions for 90 % of held-out variance, rows",
    "rows_centred_valid_rows_held_out_dimension_90": (
        "dimensions for 90 % of held-out variance, rows, over valid rows only"
    ),
    "rows_centred_effective_rank": "effective rank, rows",
    "rows_centred_held_out_at_16": "held-out variance in 16 components, rows",
    "matrices_centred_held_out_dimension_90": "dimensions for 90 % of held-out variance, matrices",
    "matrices_centred_effective_rank": "effective rank, matrices",
    "matrices_centred_held_out_at_16": "held-out variance in 16 components, matrices",
    "within_centred_90": "components for 90 % of one input's scores (row-centred)",
    "within_scores_90": "components for 90 % of one input's scores",
    "within_pattern_90": "components for 90 % of one input's pattern",
    "weights_90": "components for 90 % of the weights W_QK",
    "plan_total_variation": "total variation of the patterns, when the plan was made",
    "plan_work": "share of the work, when the plan was made",
    "evaluation_total_variation": "total variation of the patterns, as evaluated",
    "evaluation_output_error": "relative error of the attention output, as evaluated",
    "bounds_max_d": f"largest spread D of score rows (the cubic bound needs at most {LARGEST_D})",
    "bounds_dobrushin": "Dobrushin coefficient",
    "paths_all": "share of the model's output that comes through the head",
}
"""What the map of heads can show; it begins with the first that a study has.

The numbers of diagnostics follow.
"""


def head_numbers(study: Study, results: Results) -> list[dict[str, Any]]:
    """One record per head: the study's own numbers, then those of other results.

    Other results have the same weights; their numbers have a prefix.
    """
    found: dict[Head | Site, dict[str, Any]] = {}
    for site in study.ordered_sites:
        for number in range(study.sites[site].heads):
            head = Head(site.stack, site.layer, number)
            found[head] = asdict(head)
    for record in study.heads():
        found[location_of(record)].update(record)
    for at, numbers in _others(study, results):
        if at in found:
            found[at].update(numbers)
    names = list(dict.fromkeys(name for record in found.values() for name in record))
    return [{name: record.get(name) for name in names} for record in found.values()]


def _others(study: Study, results: Results) -> HeadNumbers:
    for n in study.depth.numbers if study.has("depth") else ():
        # entropy and spectral gap are among the diagnostics
        if n.head is not None and n.metric == "dirichlet":
            name = f"pattern_{n.metric}" + ("" if n.tokens == "all" else "_without_sinks")
            yield (
                Head(n.stack, n.layer, n.head),
                {name: n.mean, f"{name}_low": n.low, f"{name}_high": n.high},
            )
    for view, others in results.views:
        mine = (other for other in others if weights_of(other) == weights_of(study))
        for number, other in enumerate(mine, 1):
            yield from view.head_numbers(other, number)


def plan_numbers(plan: Plan, number: int) -> HeadNumbers:
    for choice in plan.choices:
        record = {**vars(choice), "settings": settings_label(choice.settings)}
        yield _prefixed(_numbered("plan", number), record)


def evaluation_numbers(evaluation: Evaluation, number: int) -> HeadNumbers:
    for record in evaluation.heads:
        yield _prefixed(_numbered("evaluation", number), record)


def collapse_numbers(run: Collapse, _: int) -> HeadNumbers:
    """The bounds and the paths of every head; of several runs the last one counts."""
    for record in run.bounds:
        yield _prefixed("bounds", record)
    for record in run.heads:
        lengths = {f"length_{hops}": share for hops, share in enumerate(record["by_length"])}
        yield _prefixed(
            "paths", {**{k: v for k, v in record.items() if k != "by_length"}, **lengths}
        )


def _numbered(name: str, number: int) -> str:
    """`plan`, `plan_2`, `plan_3`, …: the first of several is the one the map shows."""
    return name if number == 1 else f"{name}_{number}"


def _prefixed(prefix: str, record: dict[str, Any]) -> tuple[Head | Site, dict[str, Any]]:
    return location_of(record), {
        f"{prefix}_{key}": value
        for key, value in record.items()
        if key not in {"stack", "layer", "head"}
    }
