"""The claims about the construction: what was published, and the criterion of each verdict."""

from __future__ import annotations

from ..claims import Claim, Tables
from ..fits import power_law_exponent
from ..verdicts import judged, judged_if
from .errors import FUNCTIONS

PUBLISHED = {9: 0.1245, 17: 0.0620, 129: 0.00775}
"""Largest error of a hard ramp on [−1, 1] by number of anchors, at 4,001 places."""


def claims_of(tables: Tables, _quick: bool) -> tuple[Claim, ...]:
    anchors, heads, two, maps = (
        tables["anchors"],
        tables["heads"],
        tables["sort of two"],
        tables["map errors"],
    )
    share = max(row["hard"] / row["half a spacing"] for row in (*anchors, *heads))
    by_p = {row["p"]: row for row in anchors}
    apart = max(abs(by_p[p]["hard"] / error - 1) for p, error in PUBLISHED.items())
    message = ", ".join(f"p={p} {by_p[p]['hard']:.5f} ({error})" for p, error in PUBLISHED.items())
    at = by_p[129]
    largest = max(
        row["largest"]
        for row in tables["maps"]
        if row["units"] == max(row["units"] for row in tables["maps"])
    )
    shortest = min(maps, key=lambda row: row["units"])["units"]
    longest = max(row["units"] for row in maps)
    last = {row["target"]: row for row in maps if row["units"] == longest}
    worst = max(last.values(), key=lambda row: row["attention"])
    gap = max(abs(row["attention"] - row["network"]) for row in maps)
    falling = [
        all(a["attention"] > b["attention"] for a, b in zip(rows, rows[1:]))
        for rows in ([row for row in maps if row["target"] == target] for target in last)
    ]
    by_function = ([r for r in tables["functions"] if r["function"] == f] for f in FUNCTIONS)
    slopes = [power_law_exponent(rows, "intervals", "error") for rows in by_function]
    falls = ", ".join(
        f"{row['units']} the error is {row['attention']:.3f}"
        for row in maps
        if row["target"] == worst["target"]
    )
    exponent = power_law_exponent(two, "intervals", "hard")
    softmax = max(row["attention and softmax"] for row in tables["maps"])
    sorted_share = max(row["hard"] / row["bound"] for row in two)
    return (
        judged(
            "a hard ramp is off by half a spacing at most",
            "sup error ≤ Δ/2",
            share,
            None,
            "reproduced if at most 1",
            "largest error over Δ/2, over every p and H",
            at_most=1.0 + 1e-9,
            reason=f"the claim: the largest error is {share:.3f} times half a spacing",
        ),
        judged(
            "its error at 9, 17 and 129 anchors",
            ".1245, .0620, .00775",
            apart,
            None,
            "reproduced if at most 1 %",
            f"largest relative difference; in brackets the published: {message}",
            at_most=0.01,
            reason=f"the claim: one of the errors is {apart:.1%} off",
        ),
        _rate(
            "the error falls as 1/p",
            "O(1/p)",
            power_law_exponent(anchors, "intervals", "hard"),
            f"{len(anchors)} numbers p, H = 1",
        ),
        _rate(
            "the error falls as 1/H",
            "O(1/H)",
            power_law_exponent(heads, "H", "hard"),
            f"{len(heads)} numbers H, p = 9",
        ),
        judged(
            "β = 2/Δ comes nearer, at 129 anchors",
            "about 4 times: .0017",
            at["hard"] / at["soft"],
            None,
            "reproduced if at least 4 times",
            f"hard {at['hard']:.5f}, β = 2/Δ {at['soft']:.5f}, two anchors from the ends"
            f" {at['soft, inside']:.5f}; the largest error stands at the very ends,"
            f" {at['soft'] / (2 * at['half a spacing']):.4f} Δ",
            at_least=4.0,
            reason=f"the claim: it comes {at['hard'] / at['soft']:.2f} times as near",
        ),
        _rate(
            "values f(L_k) give f, at the same rate",
            "O(1/p)",
            max(slopes, key=lambda slope: abs(slope + 1)),
            f"{', '.join(FUNCTIONS)}, the farthest of the {len(slopes)}",
        ),
        judged_if(
            sorted_share <= 1 and all(a["hard"] > b["hard"] for a, b in zip(two, two[1:])),
            "two layers of attention sort two numbers",
            "any error above 0 is reached",
            sorted_share,
            None,
            "reproduced if at most 1 and the error falls with every p",
            f"largest error over Σ|c|Δ/2; error {two[0]['hard']:.3f} at p={two[0]['p']} to"
            f" {two[-1]['hard']:.5f} at p={two[-1]['p']}, exponent {exponent:.3f}",
            reason=f"the claim: the largest error is {sorted_share:.3f} times the bound",
        ),
        judged_if(
            worst["attention"] <= 0.05 and all(falling),
            "two layers of attention come near any continuous sequence map",
            "any error above 0 is reached",
            worst["attention"],
            (worst["low"], worst["high"]),
            f"reproduced if below .05 with {longest} units and falling at each size from"
            f" {shortest} units on",
            f"root mean square error over the target's own, {worst['target']!r}, the worse of"
            f" {', '.join(map(repr, last))}; interval: random starts; the largest error of any"
            f" output is {largest:.2f} of it; attention is off from the network by {gap:.4f} at"
            " most",
            reason=f"the scale: {longest} units are too few; with {falls}",
        ),
        judged(
            "one layer of attention and a softmax do the same",
            "universal as well",
            softmax,
            None,
            "reproduced if at most 1e-9",
            "largest difference to the two layers",
            at_most=1e-9,
            reason=f"the claim: they are {softmax:.1e} apart",
        ),
    )


def _rate(claim: str, published: str, found: float, what: str) -> Claim:
    return judged_if(
        abs(found + 1) <= 0.05,
        claim,
        published,
        found,
        None,
        "reproduced if within .05 of −1",
        f"fitted exponent over {what}",
        reason=f"the claim: the error falls with the power {found:.2f}",
    )
