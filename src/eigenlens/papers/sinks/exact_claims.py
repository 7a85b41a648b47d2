"""Claims that need no pretrained model: known patterns, and a planted neuron."""

from __future__ import annotations

import math
from statistics import mean

from ...display import numbered, percent
from ..claims import Claim, Tables
from ..verdicts import judged


def exact_claims(tables: Tables) -> tuple[Claim, ...]:
    off = max(abs(row["α₁"] - row["expected"]) for row in tables["patterns"])
    rates = [row["sink rate"] for row in tables["patterns"]]
    rows = tables["planted"]
    found = mean(sorted(row["found"]) == sorted(row["planted"]) for row in rows)
    ratio, cosine = (min(row[key] for row in rows) for key in ("λ₁/λ₂", "|cos(s*, planted)|"))
    where = f"least of {numbered(len(rows), 'draw')}, width {rows[0]['d']}"
    wrong = "the protocol: the diagnostic misses a known answer"
    return (
        judged(
            "α₁ of uniform causal attention over 64 tokens is H₆₄/64, that of all mass on the first"
            " token 1",
            ".0741 and 1; sink rate 0 and 1",
            off if rates == [0.0, 1.0] else math.nan,
            None,
            "reproduced if the largest difference is at most 1e-9 and the sink rates are 0 and 1",
            f"largest difference; the sink rates are {rates[0]:g} and {rates[1]:g}",
            at_most=1e-9,
            reason=f"{wrong} by {off:.3g}, at sink rates of {rates[0]:g} and {rates[1]:g}",
        ),
        judged(
            "a planted neuron: its channels are recovered",
            "all",
            float(found),
            None,
            "reproduced if in all draws",
            f"share of {numbered(len(rows), 'draw')} in which both channels have the largest ‖U_k‖",
            at_least=1.0,
            reason=f"{wrong} in {percent(1 - found)} of the draws",
        ),
        judged(
            "a planted neuron: λ₁/λ₂",
            "> 100",
            ratio,
            None,
            "reproduced if at least 100",
            where,
            at_least=100.0,
            reason=f"{wrong}: the least ratio is {ratio:.3g}",
        ),
        judged(
            "a planted neuron: |cos(s*, planted)|",
            "> .999",
            cosine,
            None,
            "reproduced if at least .999",
            where,
            at_least=0.999,
            reason=f"{wrong}: the least cosine is {cosine:.3g}",
        ),
    )
