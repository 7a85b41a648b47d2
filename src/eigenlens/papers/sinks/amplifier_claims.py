"""The claims about the amplifiers in the MLPs of blocks where activations step up or down."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from ...display import percent
from ..claims import Claim
from ..verdicts import judged, judged_at

Row = dict[str, Any]


def amplifier_claims(name: str, layers: Sequence[Row]) -> list[Claim]:
    """None for a model without gated MLPs or without steps."""
    steps = [row for row in layers if row["steps"] and row["amplified channel"] is not None]
    if not steps:
        return []
    return [_channel(name, steps, layers), _rank_one(name, steps), _shared(name, steps)]


def _channel(name: str, steps: Sequence[Row], layers: Sequence[Row]) -> Claim:
    same = mean(row["amplified channel"] == row["largest channel"] for row in steps)
    all_same = mean(row["amplified channel"] == row["largest channel"] for row in layers)
    channels = ", ".join(f"L{row['layer']}: {row['amplified channel']}" for row in steps)
    return judged(
        f"{name}: the channel that a step block amplifies most is the one that spikes",
        "spike channels are amplified",
        float(same),
        None,
        "reproduced if in all blocks that step up or down",
        f"share of {len(steps)} such blocks whose channel of largest |λ₁| is the largest behind it"
        f" ({channels}); of all {len(layers)} blocks {percent(all_same)}, by chance"
        f" {percent(1 / steps[0]['channels'], 1)}",
        at_least=1.0,
        reason=f"the claim: the channel that is amplified most is another in"
        f" {percent(1 - same)} of these blocks",
    )


def _rank_one(name: str, steps: Sequence[Row]) -> Claim:
    shares = [row["rank-one share"] for row in steps]
    least = min(shares)
    each = ", ".join(
        f"L{row['layer']} {row['rank-one share']:.3f} (|λ₁/λ₂| {row['dominance']:.3g})"
        for row in steps
    )
    return judged_at(
        f"{name}: in the spike channel S_k is near rank one",
        "near rank one",
        least,
        {f"{bound:g} % of ‖S_k‖²": least >= bound / 100 for bound in (50, 90, 95, 99)},
        (least, max(shares)),
        "holds where λ₁² is at least so much of ‖S_k‖²_F in every block that steps",
        f"λ₁² / ‖S_k‖²_F of the channel amplified most, the least of {each}; interval: least and"
        " largest",
        reason=f"the claim: λ₁² is {percent(least)} of ‖S_k‖²_F",
    )


def _shared(name: str, steps: Sequence[Row]) -> Claim:
    cosines = [row["shared"] for row in steps]
    least = min(cosines)
    each = ", ".join(f"L{row['layer']} {row['shared']:.3f}" for row in steps)
    return judged_at(
        f"{name}: the amplified channels share their eigenvector",
        "shared s*",
        least,
        {f"|cos| of {bound:g}": least >= bound for bound in (0.8, 0.9, 0.95)},
        (least, max(cosines)),
        "holds where |cos| between the s* of the top two channels is at least so large in every"
        " block that steps",
        f"least of {each}; interval: least and largest",
        reason=f"the claim: the least |cos| is {least:.3g}",
    )
