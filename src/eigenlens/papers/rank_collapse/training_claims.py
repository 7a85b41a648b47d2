"""The claims about models trained to see rank collapse.

They are about path lengths that matter, and about two points on a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..claims import Claim, Tables, Verdict
from ..verdicts import judged

TASKS = {"sort": (0.98, 0.6), "convex hull": (0.90, 0.65), "memorise": (0.85, 0.8)}
"""Published accuracy of the whole model, and what paths of length one exceed."""


def task_claims(tables: Tables) -> list[Claim]:
    """The claims of every task: it is learned, and paths are worth less the longer they are."""
    claims = []
    for task, (whole, first) in TASKS.items():
        rows = [row for row in tables["path accuracy"] if row["task"] == task]
        full = next(row for row in rows if row["mode"] == "model")
        known = ", ".join(
            f"{row['reading']} {row['accuracy']:.2f}" for row in rows if row["mode"] == "baseline"
        )
        note = (
            f"spread over seeds {full['spread']:.3f}; without looking at the input: {known};"
            " reproduced if at most .05 below"
        )
        name = f"{task}: attention with skips learns it"
        claims.append(
            judged(name, f"{whole}", full["accuracy"], _of_seeds(full), note, at_least=whole - 0.05)
        )
        claims += [
            claim for mode in ("frozen", "rerun") for claim in _lengths(task, first, mode, rows)
        ]
    return claims


def _lengths(task: str, first: float, mode: str, rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """Two claims about paths by length, read out alone.

    Paths of length one are worth something, and the longer the less.
    """
    curve = _curve(rows, mode, "alone")
    message = _describe(curve)
    if residual := _curve(rows, mode, "residual"):
        message += (
            f" (of the residual, without what is common to all tokens: {_describe(residual)})"
        )
    note = (
        f"paths of length 1, 2, …, {mode}, read out alone: {message}; reproduced if length 1"
        f" exceeds {first}"
    )
    name = f"{task}: what paths of length one are worth ({mode})"
    worth = judged(
        name, f"> {first}", curve[0]["accuracy"], _of_seeds(curve[0]), note, at_least=first
    )
    whole = next(row["accuracy"] for row in rows if row["mode"] == "model")
    chance = next(row["accuracy"] for row in rows if row["reading"] == "majority")
    start, end = curve[0], curve[-1]
    learned = whole >= TASKS[task][0] - 0.05
    falls = start["accuracy"] - end["accuracy"] > max(start["spread"], end["spread"])
    far = abs(end["accuracy"] - chance) <= abs(start["accuracy"] - chance) / 2
    best = max(row["accuracy"] for row in curve) <= start["accuracy"] + start["spread"]
    verdict: Verdict = "reproduced" if learned and falls and far and best else "not reproduced"
    note = (
        f"accuracy of the longest paths ({mode}): {message}; reproduced if the task was learned, no"
        " length is better than the first, and the last has lost half of what the first has over"
        f" the commonest answer ({chance:.2f}) and more than the seeds' spread"
    )
    name = f"{task}: accuracy falls with path length ({mode})"
    return [
        worth,
        Claim(name, "falls towards chance", end["accuracy"], _of_seeds(end), verdict, note),
    ]


def _curve(rows: Sequence[dict[str, Any]], mode: str, reading: str) -> list[dict[str, Any]]:
    found = [
        row for row in rows if (row["mode"], row["reading"]) == (mode, reading) and row["length"]
    ]
    return sorted(found, key=lambda row: row["length"])


def _describe(curve: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{row['accuracy']:.2f}" for row in curve)


def _of_seeds(row: dict[str, Any]) -> tuple[float, float] | None:
    return (min(row["each"]), max(row["each"])) if len(row["each"]) > 1 else None


def circle_claims(tables: Tables) -> list[Claim]:
    """Which parts keep two points apart when a layer is fed its own output."""
    rows, claims = tables["circle"], []
    for variant, name, merges in (
        ("SAN", "circle: pure attention merges the arcs", True),
        ("SAN+MLP", "circle: an MLP prevents it", False),
        ("SAN+skip", "circle: a skip prevents it", False),
    ):
        mine = [row for row in rows if row["variant"] == variant]
        share = float(np.mean([row["merged"] == merges for row in mine]))
        note = (
            f"share of the runs in which the points {'fall to' if merges else 'stay above'} a tenth"
            f" of their first distance; {_runs(mine)}; reproduced if all do"
        )
        claims.append(
            judged(
                name, "arcs merge" if merges else "arcs stay apart", share, None, note, at_least=1.0
            )
        )
    return [*claims, _slower(rows)]


def _slower(rows: Sequence[dict[str, Any]]) -> Claim:
    """The turn per step with a skip, beside that of the others.

    Only runs count in which the points went round and stayed apart.
    """
    name, speeds = "circle: a skip slows the movement", {}
    for variant in ("SAN", "SAN+MLP", "SAN+skip"):
        mine = [row for row in rows if row["variant"] == variant and row["left"] is None]
        # near the centre a turn is noise
        round_it = [row for row in mine if row["least"] >= row["distance at start"] / 2]
        if round_it:
            speeds[variant] = float(
                np.mean([abs(row["turn"]) / max(row["steps"], 1) for row in round_it])
            )
    message = ", ".join(f"{variant} {value:.2f}" for variant, value in speeds.items()) or "none"
    note = (
        "turn per step, in steps of the arc learned, mean size over the runs whose points keep half"
        f" their distance: {message}"
    )
    others = [value for variant, value in speeds.items() if variant != "SAN+skip"]
    if "SAN+skip" not in speeds or not others:
        return Claim(
            name,
            "slower",
            speeds.get("SAN+skip"),
            None,
            "out of reach",
            f"{note}; too few such runs to compare",
        )
    note += "; reproduced if below .9 of the faster other"
    return judged(name, "slower", speeds["SAN+skip"], None, note, at_most=0.9 * max(others))


def _runs(rows: Sequence[dict[str, Any]]) -> str:
    """How the runs ended, by what was trained on."""
    message = []
    for jitter in dict.fromkeys(row["jitter"] for row in rows):
        mine = [row for row in rows if row["jitter"] == jitter]
        merged, left = (
            sum(row["merged"] for row in mine),
            sum(row["left"] is not None for row in mine),
        )
        what = "points on the circle" if jitter == 0 else f"points off it by {jitter:g}"
        message.append(f"trained on {what}: {merged} of {len(mine)} merged, {left} left the circle")
    return "; ".join(message)
