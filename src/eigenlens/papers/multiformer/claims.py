"""The claims of Multiformer: what was published, which criterion each verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...display import numbered
from ..claims import Claim, Tables
from ..fits import rank_correlation, rank_correlation_interval
from ..verdicts import judged, judged_at, out_of_reach

Rows = Sequence[dict[str, Any]]
ZERO = {"all full": 1e-5, "terms": 1e-5, "relevance": 1e-5, "local heads": 0.0}
"""How far from zero each check may be."""
KEYS = 50.0
"""Keys of 100 tokens under a stride of 2."""
MIXED, SINGLE = "2 local, 2 conv", ("all local", "all conv")


def claims_of(tables: Tables, quick: bool = False) -> tuple[Claim, ...]:
    """Every claim: facts about the mechanism, then what the miniature says of the findings."""
    return (
        *(made for row in tables["checks"] for made in _check(row)),
        _runs(tables),
        _even(tables),
        _mix(tables),
    )


def _check(row: dict[str, Any]) -> list[Claim]:
    """None for what the paper does not say; it stays in the table of checks."""
    name, value = row["check"], row["value"]
    for begin, most in ZERO.items():
        if name.startswith(begin):
            return [
                judged(
                    name,
                    "0",
                    value,
                    None,
                    f"reproduced if at most {most:g}",
                    "largest difference",
                    at_most=most,
                    reason=f"the protocol: the layer as built is off by {value:.1e}",
                )
            ]
    if name.startswith("keys"):
        return [
            judged(
                name,
                f"{KEYS:g}",
                value,
                None,
                f"reproduced if {KEYS:g}",
                "rank of the head's weights for random queries",
                **({"at_least": KEYS} if value <= KEYS else {"at_most": KEYS}),
                reason=f"the protocol: the layer as built has {value:g}",
            )
        ]
    return []


def _runs(tables: Tables) -> Claim:
    rows = tables["configurations"]
    message = ", ".join(f"{row['configuration']} {row['cost at 1024']:.2f}" for row in rows)
    run = sum(row["runs"] for row in rows)
    return judged(
        "the layer configurations lc, v1 and v2 (12 layers of 4 heads) run",
        "3",
        float(run),
        None,
        "reproduced if all",
        "number that give finite outputs at 1, 2 and 100 frames; cost of attention at 1024 frames,"
        f" full = 1: {message}",
        at_least=float(len(rows)),
        reason=f"the protocol: {len(rows) - run} of {len(rows)} as built give outputs that are not"
        " finite",
    )


def _even(tables: Tables) -> Claim:
    """The correlation of evenness and accuracy, of all kinds of heads and of fewer."""
    rows = tables["runs"]
    mixes = [row for row in rows if "," in row["heads"]]
    kinds = {
        f"all {len(rows)} runs": rows,
        "without all local heads": [row for row in rows if row["heads"] != "all local"],
        "the mixes alone": mixes,
    }
    curve = {
        words: rank_correlation(*_columns(some)) for words, some in kinds.items() if len(some) > 2
    }
    low, high = rank_correlation_interval(*_columns(rows), draws=1000)
    even = {row["heads"]: row for row in tables["kinds"]}
    best, worst = (pick(even.values(), key=lambda row: row["accuracy"]) for pick in (max, min))
    points = {f"{words} ({value:.2f})": value > 0 for words, value in curve.items()}
    return judged_at(
        "the more alike the heads count, the better the model",
        "uniform relevance went with better BLEU",
        next(iter(curve.values())),
        {**points, f"all of the interval (from {low:.2f})": low > 0},
        (low, high),
        "holds where the rank correlation is above 0",
        "rank correlation of evenness (entropy of the relevance map over its largest value) and"
        " accuracy; interval: 95 %, of all runs, drawn anew 1000 times",
        reason="the claim: relevance is size, not use: evenness is"
        f" {worst['evenness']:.3f} in the worst kind of layer ({worst['heads']}, accuracy"
        f" {worst['accuracy']:.3f}) and {best['evenness']:.3f} in the best ({best['heads']},"
        f" {best['accuracy']:.3f})",
    )


def _columns(rows: Rows) -> tuple[list[float], list[float]]:
    return [row["evenness"] for row in rows], [row["accuracy"] for row in rows]


def _mix(tables: Tables) -> Claim:
    """The gain of the mix over the better single kind, of a task that is not speech."""
    found = {(row["heads"], row["seed"]): row["accuracy"] for row in tables["runs"]}
    seeds = sorted({seed for _, seed in found})
    each = [found[MIXED, seed] - max(found[kind, seed] for kind in SINGLE) for seed in seeds]
    message = ", ".join(
        f"{row['heads']} {row['accuracy']:.3f} (cost {row['cost']:.2f})" for row in tables["kinds"]
    )
    return out_of_reach(
        "speech translation: heads of several kinds beat one kind",
        "up to +0.7 BLEU",
        "translated speech, and GPUs to learn it",
        f"miniature: repeated letters, accuracy of {MIXED} in every layer less that of the better"
        f" of all local and all conv; all: {message}; interval: least and largest of"
        f" {numbered(len(each), 'seed')}",
        measured=float(np.mean(each)),
        interval=(min(each), max(each)),
    )
