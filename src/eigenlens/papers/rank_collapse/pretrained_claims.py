"""The claims about pretrained models, judged where the theory is about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...collapses.verdict import COLLAPSED
from ...stats.rounding import describe_residual, rounding_floor
from ..claims import Claim
from ..verdicts import judged, judged_along, out_of_reach
from .coverage import COVERED

Rows = Sequence[dict[str, Any]]
BELOW = (COLLAPSED, 0.01, 0.001)
"""Residuals at which tokens count as one vector."""
ABOVE = (COLLAPSED, 0.1, 0.3)
"""Residuals at which tokens count as kept apart."""
FLOOR = rounding_floor("float32")
PURE = "pretrained: pure attention converges to rank one"


def pretrained_claims(models: Rows, single: Rows) -> list[Claim]:
    """None if no pretrained model was measured."""
    if not models:
        return []
    last = {(row["model"], row["stack"]): row for row in models}  # behind the last block
    covered = [row for row in last.values() if row["theory"] == COVERED]
    others = [row for row in last.values() if row["theory"] != COVERED]
    ends = _ends(covered, "SAN")
    claims = []
    if ends:
        claims.append(
            judged_along(
                PURE,
                "BERT and ALBERT: 0 at depth 12",
                _shares_below(ends),
                f"below {BELOW[0]:g}",
                None,
                "holds at a residual below which all stacks end that the theory is about",
                "share of the stacks without a mask or a position in their scores; pure attention"
                f" ends at: {_listed(ends)}",
                at_least=1.0,
                reason=f"the claim: the stacks end at {_listed(ends)}",
            )
        )
    if beyond := _ends(others, "SAN"):
        why = "; ".join(f"{row['model']} {row['stack']}: {row['theory']}" for row in others)
        share = _shares_below(beyond)[f"below {BELOW[0]:g}"]
        claims.append(
            out_of_reach(
                "the same of stacks that the theory does not cover",
                "not claimed: the rate needs attention without mask and position bias",
                "scores without a mask and without position in them",
                f"share of the stacks that end below {BELOW[0]:g} nevertheless; pure attention ends"
                f" at: {_listed(beyond)}; {why}",
                measured=share,
            )
        )
    kept, pure = _ends(last.values(), "full"), _ends(last.values(), "SAN")
    both = {name: f"{describe_residual(value, FLOOR)}" for name, value in kept.items()}
    claims.append(
        judged_along(
            "pretrained: skips and MLPs stop it",
            "BERT .310, ALBERT .556 at depth 12",
            {
                f"at least {least:g}": float(np.mean([x >= least for x in kept.values()]))
                for least in ABOVE
            },
            f"at least {ABOVE[0]:g}",
            None,
            "holds at a residual above which the whole models of all stacks end",
            "share of the pretrained stacks; the whole model ends at, in brackets pure attention: "
            + ", ".join(
                f"{name} {end} ({describe_residual(pure[name], FLOOR)})"
                for name, end in both.items()
                if name in pure
            ),
            at_least=1.0,
            reason=f"the claim: the least of the stacks ends at {min(kept.values()):.2g}",
        )
    )
    return [*claims, *_single(single)]


def _ends(rows: Any, variant: str) -> dict[str, float]:
    return {f"{r['model']} {r['stack']}": r[variant] for r in rows if r[variant] is not None}


def _shares_below(ends: dict[str, float]) -> dict[str, float]:
    return {
        f"below {most:g}": float(np.mean([value < most for value in ends.values()]))
        for most in BELOW
    }


def _listed(ends: dict[str, float]) -> str:
    return ", ".join(f"{name} {describe_residual(value, FLOOR)}" for name, value in ends.items())


def _single(rows: Rows) -> list[Claim]:
    """Single paths of the pretrained stacks whose residual about rank one was measured."""
    curves: dict[str, list[float]] = {}
    for row in rows:
        if not row["model"].endswith(" random") and row["rank one"] is not None:
            curves.setdefault(f"{row['model']} {row['stack']}", []).append(row["rank one"])
    factors = {
        name: float((curve[-1] / curve[0]) ** (1 / (len(curve) - 1)))
        for name, curve in curves.items()
        if len(curve) > 1
    }
    if not factors:
        return []
    slowest = max(factors, key=lambda name: factors[name])
    listed = "; ".join(f"{name} {', '.join(f'{v:.2g}' for v in curves[name])}" for name in factors)
    return [
        judged(
            "pretrained, single paths fall exponentially",
            "≈ .35, .18, .09, .045, .018",
            factors[slowest],
            (min(factors.values()), factors[slowest]),
            "reproduced if each hop keeps at most .7 of the residual in every stack",
            f"factor per hop about rank one, of {slowest}, the slowest; interval: the stacks;"
            f" residuals by hops (pretrained BERT-base is in no package registry): {listed}",
            at_most=0.7,
            reason=f"the claim: {slowest} keeps a factor of {factors[slowest]:.2f} per hop",
        )
    ]
