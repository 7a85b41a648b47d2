"""Sentences on where a model would collapse and what keeps it from that, from its ablations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..display import numbered
from ..stats.rounding import describe_residual

if TYPE_CHECKING:
    from .result import Collapse

COLLAPSED = 0.05
"""Tokens count as one vector where their relative residual is below this."""
BOTH = "both skips"
PARTS = {
    "SAN+MLP": BOTH,
    "without attention skip": "the attention skip",
    "without MLP skip": "the MLP skip",
    "SAN+skip": "the MLPs",
    "without norm": "the norms",
}
"""What each ablation takes out of the model."""


def sentence(run: Collapse) -> str:
    """Say for every stack where attention alone would collapse, and what keeps tokens apart."""
    stacks = run.curves["full"].stacks
    if not stacks:
        return "The model showed no blocks, so nothing is known about its tokens along depth."
    return " ".join(
        _of_stack(run, stack, "" if len(stacks) == 1 else f" of the {stack}") for stack in stacks
    )


def _of_stack(run: Collapse, stack: str, where: str) -> str:
    full = [point["mean"] for point in run.curves["full"].curve("residual", stack)]
    blocks = numbered(len(full) - 1, "block")
    start = (
        f"Over {blocks} the distance of the tokens{where} from one common vector (relative"
        f" residual) goes from {full[0]:.2f} to {describe_residual(full[-1], run.floor)}"
    )
    if "SAN" not in run.curves:
        if len(run.curves) == 1:
            return start + ". No ablation was measured, so what holds them apart is not known."
        return f"{start}. {_held_up(run, stack, full[-1])}"
    pure = [point["mean"] for point in run.curves["SAN"].curve("residual", stack)]
    return f"{start}. {_alone(pure, run.floor)}. {_held_up(run, stack, full[-1])}"


def _alone(pure: list[float], floor: float) -> str:
    first = next((index for index, value in enumerate(pure) if value < COLLAPSED), None)
    if first is None:
        return (
            f"With attention alone {pure[-1]:.2g} would be left at the end, which is no collapse"
            f" (below {COLLAPSED:g})"
        )
    rate = (max(pure[first], floor) / pure[0]) ** (1 / first) if pure[0] > 0 and first else 0.0
    where = (
        f"With attention alone the tokens would collapse at block {first}"
        f" ({describe_residual(pure[first], floor)})"
    )
    return (
        f"{where}; until there each block keeps {'less than ' * (pure[first] < floor)}{rate:.2g} of"
        " the distance on average"
    )


def _held_up(run: Collapse, stack: str, full: float) -> str:
    """Say without which part the residual at the end is smallest.

    If a single skip does as much as both, that skip is named.
    """
    ends = {
        part: run.curves[name].curve("residual", stack)[-1]["mean"]
        for name, part in PARTS.items()
        if name in run.curves
    }
    if not ends:
        return "No part was taken out alone, so what holds the tokens apart is not known."
    order = sorted(ends.items(), key=lambda item: item[1])
    ending = ", ".join(
        f"{describe_residual(value, run.floor)} without {part}" for part, value in order
    )
    part = min(ends, key=lambda name: ends[name])
    if ends[part] >= full / 2:
        return f"No single part holds the tokens apart: the residual at the end is {ending}."
    skips = {
        skip: ends[skip]
        for skip in ("the attention skip", "the MLP skip")
        if ends.get(skip, full) < full / 10
    }
    if part == BOTH and skips:
        part = min(skips, key=lambda name: skips[name])
    return (
        f"{part[0].upper()}{part[1:]} {'holds' if part.endswith('skip') else 'hold'} the tokens"
        f" apart: the residual at the end is {ending}."
    )
