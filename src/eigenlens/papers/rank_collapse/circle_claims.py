"""The claims about two points on a circle that a layer leads by its own output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..claims import Claim
from ..verdicts import judged, judged_along, out_of_reach

Rows = Sequence[dict[str, Any]]
AUTHORS = "authors"
WHAT = (
    ("SAN", "circle: pure attention merges the arcs", True),
    ("SAN+MLP", "circle: an MLP prevents it", False),
    ("SAN+skip", "circle: a skip prevents it", False),
)
"""Variant, claim, and whether the points are to merge."""
BARE = "SAN without its input"
"""Pure attention in fact: the authors' block adds its input even where no skip is spoken of."""
MOST = "one random start was published: holds where at least half of our seeds do it"


def circle_claims(rows: Rows) -> list[Claim]:
    """Which parts keep two points apart, as we train and by the authors' settings."""
    ours = [row for row in rows if row["settings"] != AUTHORS]
    theirs = [row for row in rows if row["settings"] == AUTHORS]
    claims = [_ours(ours, theirs, *what) for what in WHAT]
    settings = "authors' settings"
    for variant, name, merges in WHAT:
        claims.append(_theirs(theirs, variant, f"{name} ({settings})", merges))
        if variant == "SAN":
            named = f"{name} ({settings}, the block does not add its input)"
            claims.append(_theirs(theirs, BARE, named, merges))
    name = "circle: a skip slows the movement"
    return [*claims, _slower(ours, theirs, name), _slower(theirs, ours, f"{name} ({settings})")]


def _ours(ours: Rows, theirs: Rows, variant: str, name: str, merges: bool) -> Claim:
    """By what was trained on: points on the circle, or off it, from which a way back is learned."""
    mine = [row for row in ours if row["variant"] == variant]
    curve = {
        _trained_on(jitter): _share([row for row in mine if row["jitter"] == jitter], merges)
        for jitter in dict.fromkeys(row["jitter"] for row in mine)
    }
    other = [row for row in theirs if row["variant"] == (BARE if variant == "SAN" else variant)]
    return judged_along(
        name,
        _stated(merges),
        curve,
        next(iter(curve)),
        None,
        MOST,
        f"share of the runs in which the points {_ending(merges)}; {_runs(mine)}",
        at_least=0.5,
        reason=f"the protocol: by the authors' settings {_share(other, merges):.2f} of the runs do",
    )


def _theirs(theirs: Rows, variant: str, name: str, merges: bool) -> Claim:
    mine = [row for row in theirs if row["variant"] == variant]
    bare = [row for row in theirs if row["variant"] == BARE]
    merged, left, number = _counts(mine)
    errors = [row["error"] for row in mine]
    return judged(
        name,
        _stated(merges),
        _share(mine, merges),
        None,
        MOST.replace("holds where", "reproduced if"),
        f"share of the runs in which the points {_ending(merges)}; {merged} of {number} merged,"
        f" {left} left the circle; squared error of the next point over the variance of a"
        f" coordinate: {min(errors):.2g} to {max(errors):.2g}",
        at_least=0.5,
        reason=(
            f"the protocol: the authors' block adds its input; without, {_counts(bare)[0]} of"
            f" {len(bare)} merge"
            if variant == "SAN"
            else f"the claim: {merged} of {number} merge by the authors' own settings"
        ),
    )


def _slower(rows: Rows, others: Rows, name: str) -> Claim:
    """The turn per step with a skip, beside that of the others.

    Only runs count in which the points went round and stayed apart.
    """
    speeds = _speeds(rows)
    told = ", ".join(f"{variant} {value:.2f}" for variant, value in speeds.items()) or "none"
    note = (
        "turn per step, in steps of the arc learned, mean size over the runs whose points keep half"
        f" their distance: {told}"
    )
    rest = [value for variant, value in speeds.items() if variant != "SAN+skip"]
    mine = speeds.get("SAN+skip")
    if mine is None or not rest:
        missing = "runs with a skip and without one in which the points go round apart"
        return out_of_reach(name, "slower", missing, note, measured=mine)
    elsewhere = ", ".join(f"{variant} {value:.2f}" for variant, value in _speeds(others).items())
    return judged(
        name,
        "slower",
        mine,
        None,
        "reproduced if below .9 of the fastest other",
        note,
        at_most=0.9 * max(rest),
        reason=f"the protocol: by the other settings the turn per step is {elsewhere or 'unknown'}",
    )


def _speeds(rows: Rows) -> dict[str, float]:
    found = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant and row["left"] is None]
        # near the centre a turn is noise
        apart = [row for row in mine if row["least"] >= row["distance at start"] / 2]
        if apart:
            found[variant] = float(np.mean([abs(r["turn"]) / max(r["steps"], 1) for r in apart]))
    return found


def _share(rows: Rows, merges: bool) -> float:
    return float(np.mean([row["merged"] == merges for row in rows])) if rows else float("nan")


def _stated(merges: bool) -> str:
    return "arcs merge" if merges else "arcs stay apart"


def _ending(merges: bool) -> str:
    return f"{'fall to' if merges else 'stay above'} a tenth of their first distance"


def _trained_on(jitter: float) -> str:
    return "points on the circle" if jitter == 0 else f"points off it by {jitter:g}"


def _counts(rows: Rows) -> tuple[int, int, int]:
    """How many merged, how many left the circle, and how many there are."""
    merged, left = (
        sum(row["merged"] for row in rows),
        sum(row["left"] is not None for row in rows),
    )
    return merged, left, len(rows)


def _runs(rows: Rows) -> str:
    """How the runs ended, by what was trained on."""
    message = []
    for jitter in dict.fromkeys(row["jitter"] for row in rows):
        merged, left, number = _counts([row for row in rows if row["jitter"] == jitter])
        message.append(
            f"trained on {_trained_on(jitter)}: {merged} of {number} merged, {left} left the circle"
        )
    return "; ".join(message)
