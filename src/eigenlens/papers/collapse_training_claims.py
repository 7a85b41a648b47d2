"""The claims about models trained to see rank collapse: path lengths that matter, and two points on a circle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .claims import Claim, Verdict, judged

TASKS = {"sort": (0.98, 0.6), "convex hull": (0.90, 0.65), "memorise": (0.85, 0.8)}
"""Published accuracy of the whole model, and what paths of length one exceed."""

Tables = Mapping[str, Sequence[dict[str, Any]]]


def task_claims(tables: Tables) -> list[Claim]:
    """Of every task: it is learned, paths of length one are worth most, and longer ones less."""
    claims = []
    for task, (whole, first) in TASKS.items():
        rows = [row for row in tables["path accuracy"] if row["task"] == task]
        full = next(row for row in rows if row["mode"] == "model")
        known = ", ".join(f"{row['reading']} {row['accuracy']:.2f}" for row in rows if row["mode"] == "baseline")
        note = f"spread over seeds {full['spread']:.3f}; without looking at the input: {known}; reproduced if at most .05 below"
        name = f"{task}: attention with skips learns it"
        claims.append(judged(name, f"{whole}", full["accuracy"], _of_seeds(full), note, at_least=whole - 0.05))
        claims += [claim for mode in ("frozen", "rerun") for claim in _lengths(task, first, mode, rows)]
    return claims


def _lengths(task: str, first: float, mode: str, rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """Two claims about paths by length, read out alone: the first is worth something, and the longer the less."""
    curve = _curve(rows, mode, "alone")
    told = _told(curve)
    if residual := _curve(rows, mode, "residual"):
        told += f" (of the residual, without what is common to all tokens: {_told(residual)})"
    note = f"paths of length 1, 2, …, {mode}, read out alone: {told}; reproduced if length 1 exceeds {first}"
    name = f"{task}: paths of length one are worth most ({mode})"
    worth = judged(name, f"> {first}", curve[0]["accuracy"], _of_seeds(curve[0]), note, at_least=first)
    fall = curve[0]["accuracy"] - curve[-1]["accuracy"]
    best = max(row["accuracy"] for row in curve) <= curve[0]["accuracy"] + 1e-9
    verdict: Verdict = "reproduced" if fall > 0 and best else "not reproduced"
    note = f"accuracy of length 1 less that of the longest ({mode}): {told}; reproduced if above 0 and length 1 is the best"
    return [
        worth,
        Claim(f"{task}: accuracy falls with path length ({mode})", "falls towards chance", fall, None, verdict, note),
    ]


def _curve(rows: Sequence[dict[str, Any]], mode: str, reading: str) -> list[dict[str, Any]]:
    found = [row for row in rows if (row["mode"], row["reading"]) == (mode, reading) and row["length"]]
    return sorted(found, key=lambda row: row["length"])


def _told(curve: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{row['accuracy']:.2f}" for row in curve)


def _of_seeds(row: dict[str, Any]) -> tuple[float, float] | None:
    return (min(row["each"]), max(row["each"])) if len(row["each"]) > 1 else None


def circle_claims(tables: Tables) -> list[Claim]:
    """Which parts keep two points apart when a layer is fed its own output."""
    rows, claims = tables["circle"], []
    for variant, name, merges in (
        ("SAN", "circle: pure attention merges the arcs", True), ("SAN+MLP", "circle: an MLP prevents it", False),
        ("SAN+skip", "circle: a skip prevents it", False),
    ):  # fmt: skip
        mine = [row for row in rows if row["variant"] == variant]
        share = float(np.mean([row["merged"] == merges for row in mine]))
        note = (
            f"share of the runs in which the points {'fall to' if merges else 'stay above'} a tenth of their first distance; "
            f"{_runs(mine)}; reproduced if all do"
        )
        claims.append(judged(name, "arcs merge" if merges else "arcs stay apart", share, None, note, at_least=1.0))
    speed = {variant: _speed(rows, variant) for variant in ("SAN", "SAN+MLP", "SAN+skip")}
    others = max(speed["SAN"], speed["SAN+MLP"])
    told = ", ".join(f"{variant} {value:.2f}" for variant, value in speed.items())
    note = f"turn a step in steps of the arc learned, mean size over runs: {told}; reproduced if below .9 of the faster other"
    claims.append(judged("circle: a skip slows the movement", "slower", speed["SAN+skip"] / others, None, note, at_most=0.9))
    return claims


def _runs(rows: Sequence[dict[str, Any]]) -> str:
    """How the runs ended, by what was trained on."""
    told = []
    for jitter in dict.fromkeys(row["jitter"] for row in rows):
        mine = [row for row in rows if row["jitter"] == jitter]
        merged, left = sum(row["merged"] for row in mine), sum(row["left"] is not None for row in mine)
        what = "points on the circle" if jitter == 0 else f"points off it by {jitter:g}"
        told.append(f"trained on {what}: {merged} of {len(mine)} merged, {left} left the circle")
    return "; ".join(told)


def _speed(rows: Sequence[dict[str, Any]], variant: str) -> float:
    """The mean turn a step, of runs that stayed on the circle; of all where none did."""
    mine = [row for row in rows if row["variant"] == variant]
    stayed = [row for row in mine if row["left"] is None] or mine
    return float(np.mean([abs(row["turn"]) / max(row["steps"], 1) for row in stayed]))
