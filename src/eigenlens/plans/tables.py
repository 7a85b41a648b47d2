"""The tables and the sentence of a plan."""

from __future__ import annotations

from typing import Any

from ..display import percent
from ..estimators.estimator import settings_label
from .result import Plan


def choice_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row per head: what it got, what that costs and loses, and why."""
    labels = plan.labels
    return [
        {
            "head": labels(c.at),
            "estimator": c.estimator,
            "settings": settings_label(c.settings),
            "work": c.work,
            "pairs": c.pairs,
            "total variation": c.total_variation,
            "why": c.why,
        }
        for c in plan.choices
    ]


def curve_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row per estimator and budget, mean of the heads."""
    return [
        {
            "estimator": row["estimator"],
            "budget": row["budget"],
            "pairs": row["pairs"],
            "work": row["work"],
            "score error": row["score_error"],
            "total variation": row["total_variation"],
        }
        for row in plan.curve
    ]


def plan_sentence(plan: Plan) -> str:
    """What share of the work the plan takes, and how far it moves the patterns."""
    count: dict[str, int] = {}
    for choice in plan.choices:
        count[choice.estimator] = count.get(choice.estimator, 0) + 1
    kinds = ", ".join(
        f"{number} × {name}" for name, number in sorted(count.items(), key=lambda item: -item[1])
    )
    if plan.blocks is not None:
        return (
            f"{len(plan.choices)} heads ({kinds}) take {percent(plan.work, 1)}"
            " of the work of causal attention, the choice of blocks included."
        )
    worst = max(plan.choices, key=lambda choice: choice.total_variation or 0.0)
    return (
        f"{len(plan.choices)} heads ({kinds}) take {percent(plan.work, 1)}"
        " of the work of exact scores. On held-out inputs their attention patterns move by"
        f" {plan.total_variation:.3f} in total variation on average (0: not at all, 1: completely),"
        f" most in {plan.labels(worst.at)} ({worst.total_variation:.3f})."
    )
