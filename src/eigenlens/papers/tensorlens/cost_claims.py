"""The claims about time and memory of a row of the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Claim
from ..fits import power_law_exponent
from ..verdicts import judged, judged_at

Rows = Sequence[dict[str, Any]]


def cost_claims(rows: Rows, widths: Rows) -> list[Claim]:
    ratios, freezing = ([row[f"{what} / forward"] for row in rows] for what in ("row", "freeze"))
    last = max(rows, key=lambda row: row["tokens"])
    span = f"{min(r['tokens'] for r in rows)} to {last['tokens']} tokens of {last['model']}"
    time = judged_at(
        "a row of T costs about a forward pass",
        "one backward pass of the frozen graph",
        max(ratios),
        {f"{bound:g} passes": max(ratios) <= bound for bound in (1.5, 2.0)},
        (min(ratios), max(ratios)),
        "holds where a row takes at most so many forward passes at every length",
        f"time of one row of T (Tᵀu) over that of a forward pass, at {span}, in turns, median of"
        f" rounds; measured is the largest; freezing takes {min(freezing):.1f} to"
        f" {max(freezing):.1f} passes, once per input; interval: least and largest",
        reason=f"the claim: a row takes up to {max(ratios):.2g} forward passes",
    )
    shares = [row["graph and row / whole"] for row in rows]
    share = shares[rows.index(last)]
    memory = judged(
        "rows need no whole tensor",
        "never built",
        share,
        (min(shares), max(shares)),
        "reproduced if at most 1 %",
        "memory of the frozen graph and of one row over that of the whole tensor, at"
        f" {last['tokens']} tokens ({last['graph MB']:.0f} MB and {last['row MB']:.1f} MB over"
        f" {last['whole MB']:,.0f} MB); interval: least and largest over lengths",
        at_most=0.01,
        reason=f"the scale: at {last['tokens']} tokens they still take {share:.2g} of the whole",
    )
    by_tokens, by_width = (
        power_law_exponent(rows, "tokens", "row MB"),
        power_law_exponent(widths, "channels", "row MB"),
    )
    grows = (
        power_law_exponent(rows, "tokens", "graph MB"),
        power_law_exponent(widths, "channels", "graph MB"),
    )
    found = (by_tokens, by_width, *grows)
    growth = judged(
        "memory does not grow as (n·d)²",
        "below 2",
        max(found),
        (min(found), max(found)),
        "reproduced if all exponents are below 2",
        f"memory of one row grows as n^{by_tokens:.2f} in tokens ({span}) and as d^{by_width:.2f}"
        f" in channels ({min(r['channels'] for r in widths)} to"
        f" {max(r['channels'] for r in widths)} of a random BERT), the frozen graph as"
        f" n^{grows[0]:.2f} and d^{grows[1]:.2f}, the whole tensor as n² d²; measured is the"
        " largest exponent, interval: least and largest of the four",
        at_most=2 - 1e-9,
        reason=f"the claim: the largest exponent is {max(found):.2f}",
    )
    return [time, memory, growth]
