"""The tables and the sentence of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..captures import Site
from ..display import numbered, percent
from ..estimators.estimator import settings_label
from ..run.result import TitledTable
from .result import Choice, Plan


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


def layer_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row per layer: what its heads got, and what that costs and loses on average."""
    layers: dict[Site, list[Choice]] = {}
    for choice in plan.choices:
        layers.setdefault(choice.at.site, []).append(choice)
    rows = []
    for site, choices in layers.items():
        what = "estimators" if plan.simulated else "forms"
        row: dict[str, Any] = {"layer": plan.labels(site), what: _estimators(choices)}
        row["work"] = sum(c.work for c in choices) / len(choices)
        lost = {c.at: c.total_variation for c in choices if c.total_variation is not None}
        if lost:
            worst = max(lost, key=lambda at: lost[at])
            row["total variation"] = sum(lost.values()) / len(lost)
            row["worst head"] = f"{plan.labels(worst)} ({lost[worst]:.3f})"
        rows.append(row)
    return rows


def nearest_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row per estimator: its largest budget within the plan's own, and the plan last."""
    within: dict[str, dict[str, Any]] = {}
    for row in curve_rows(plan):
        if row["work"] <= max(plan.work, plan.target.get("budget") or 0.0) + 0.01:
            best = within.get(row["estimator"])
            if best is None or row["total variation"] < best["total variation"]:
                within[row["estimator"]] = row
    rows = [
        {name: row[name] for name in ("estimator", "work", "score error", "total variation")}
        for row in within.values()
    ]
    if rows:
        own = {"estimator": "this plan", "work": plan.work, "score error": None}
        rows.append({**own, "total variation": plan.total_variation})
    return rows


def plan_tables(plan: Plan) -> list[TitledTable]:
    """What a terminal prints: layers, estimators at this budget; every head in full."""
    whole = "exact scores" if plan.simulated else "full attention"
    tables = [
        TitledTable(_search_title(plan), search_rows(plan)),
        TitledTable(f"What the heads of each layer get (work: 1 = {whole})", layer_rows(plan)),
        TitledTable(
            "The best of each estimator for no more work, mean over heads", nearest_rows(plan)
        ),
        TitledTable(
            "Every estimator at every budget, mean over heads", curve_rows(plan), long=True
        ),
        TitledTable("What each head gets", choice_rows(plan), long=True),
    ]
    return [table for table in tables if table.rows]


def _search_title(plan: Plan) -> str:
    if (plan.stored.get("search") or {}).get("pays"):
        return "How much worse the model gets within the plan"
    return "The best plan that was tried, and not taken: it is not faster enough"


def _worse(rise: float) -> str:
    """`0.41 % worse`, or `0.10 % better`."""
    return f"{percent(abs(rise), 2)} {'worse' if rise >= 0 else 'better'}"


def _estimators(choices: Sequence[Choice]) -> str:
    """`11 × adaptive, 1 × joint`."""
    count = Counter(choice.estimator for choice in choices)
    return ", ".join(f"{number} × {name}" for name, number in count.most_common())


def plan_sentence(plan: Plan) -> str:
    """What share of the work the plan takes, and how far it moves the patterns."""
    kinds = _estimators(plan.choices)
    if plan.sparse is not None:
        return sparse_sentence(plan, kinds)
    worst = max(plan.choices, key=lambda choice: choice.total_variation or 0.0)
    return (
        f"Simulated: {len(plan.choices)} heads ({kinds}) would take {percent(plan.work, 1)}"
        " of the work of exact scores. On held-out inputs their attention patterns move by"
        f" {plan.total_variation:.3f} in total variation on average (0: not at all, 1: completely),"
        f" most in {plan.labels(worst.at)} ({worst.total_variation:.3f})."
    )


def sparse_sentence(plan: Plan, kinds: str) -> str:
    """What a plan that leaves keys out computes, gains and loses; plainly if it gains nothing."""
    found = plan.stored.get("search") or {}
    kept = (
        f"{len(plan.choices)} heads ({kinds}) take {percent(plan.work, 1)} of the work of full"
        " attention, the choice of keys included."
    )
    if "loss" not in plan.target:
        return kept
    from .loss_search import PAYS

    took, loss = found["pass"], percent(plan.target["loss"], 2)
    if not found["pays"]:
        start = found.get("pays_from")
        share = percent(took["attention"] / took["seconds"], 0)
        when = (
            f"from about {start} tokens on it would"
            if start is not None and start > plan.length
            else "at no length that this model reads would one"
            if start is None
            else f"none within {loss} is {PAYS:g} times faster"
        )
        return (
            f"At {plan.length} tokens attention is {share} of this model's time: no plan pays;"
            f" {when}. Every head attends as before."
        )
    checked = found["checked"]
    speed = checked["plain_seconds"] / checked["seconds"]
    if plan.work == 1:
        return (
            f"At {plan.length} tokens the model is {speed:.2f} times faster and loses nothing: all"
            f" {len(plan.choices)} heads attend to every key, by the native kernel. No plan that"
            f" leaves keys out was found within a loss of {100 * plan.target['loss']:g} %."
        )
    low, high = checked["interval"]
    safer = sum("checked" in one for one in found.get("tried", ()))
    which = (
        f"that it was checked on (and made safer {numbered(safer, 'time')} because of them)"
        if safer
        else "that nothing was chosen on"
    )
    return (
        f"At {plan.length} tokens the model is {speed:.2f} times faster within a loss of {loss}:"
        f" on {plan.facts.data.count(checked['documents'])} {which}, it gets"
        f" {_worse(checked['rise'])} on average (95 % interval {percent(low, 2)} to"
        f" {percent(high, 2)}). A single one is predicted to get at most"
        f" {percent(found['single'], 2)} worse. {kept}"
    )


def search_rows(plan: Plan) -> list[dict[str, Any]]:
    """What a plan within a loss was predicted to lose, and what it lost where it was checked."""
    found = plan.stored.get("search") or {}
    rows = []
    for what, name in (("chosen", "predicted"), ("checked", "checked")):
        if name not in found:
            continue
        one = found[name]
        rows.append(
            {
                "on": f"{plan.facts.data.count(one['documents'])} ({what})",
                "worse by": percent(one["rise"], 2),
                "95 % interval": " to ".join(percent(end, 2) for end in one["interval"]),
                "seconds": one["seconds"],
                "plain": one["plain_seconds"],
                "times faster": one["plain_seconds"] / one["seconds"],
            }
        )
    return rows
