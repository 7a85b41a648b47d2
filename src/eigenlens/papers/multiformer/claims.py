"""The claims of Multiformer: what was published, which criterion each verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...display import numbered
from ..claims import Claim, Tables, Verdict
from ..fits import rank_correlation, rank_correlation_interval
from ..verdicts import judged

ZERO = {"all full": 1e-5, "terms": 1e-5, "relevance": 1e-5, "local heads": 0.0}
"""How far from zero each check may be."""
MIXED, SINGLE = "2 local, 2 conv", ("all local", "all conv")


def claims_of(tables: Tables, quick: bool = False) -> tuple[Claim, ...]:
    """Every claim: facts about the mechanism, then what the miniature says of the findings."""
    return (
        *(_check(row) for row in tables["checks"]),
        _runs(tables),
        _mix(tables),
        _even(tables),
        Claim(
            "speech translation: heads of several kinds beat one kind",
            "up to +0.7 BLEU",
            _gains(tables)[0],
            None,
            "out of reach",
            "needs translated speech and GPUs; measured is the miniature's gain over the better"
            " single"
            " kind",
        ),
    )


def _check(row: dict[str, Any]) -> Claim:
    name, value = row["check"], row["value"]
    for begin, most in ZERO.items():
        if name.startswith(begin):
            return judged(name, "0", value, None, f"reproduced if at most {most:g}", at_most=most)
    if name.startswith("keys"):
        verdict: Verdict = "reproduced" if value == 50 else "not reproduced"
        return Claim(
            name,
            "50",
            value,
            None,
            verdict,
            "rank of the head's weights for random queries; reproduced if 50",
        )
    return judged(
        name,
        "not so in the authors' code",
        value,
        None,
        "1 if outputs are finite at 1, 2 and 100 tokens; reproduced if 1",
        at_least=1.0,
    )


def _runs(tables: Tables) -> Claim:
    rows = tables["configurations"]
    message = ", ".join(f"{row['configuration']} {row['cost at 1024']:.2f}" for row in rows)
    note = (
        "number that give finite outputs at 1, 2 and 100 frames; cost of attention at 1024 frames,"
        f" full = 1: {message}"
    )
    return judged(
        "the layer configurations lc, v1 and v2 (12 layers of 4 heads) run",
        "3",
        float(sum(row["runs"] for row in rows)),
        None,
        f"{note}; reproduced if all",
        at_least=float(len(rows)),
    )


def _gains(tables: Tables) -> tuple[float, list[float]]:
    """Accuracy of the mix less that of the better single kind: the mean, and each seed."""
    found = {(row["heads"], row["seed"]): row["accuracy"] for row in tables["runs"]}
    seeds = sorted({seed for _, seed in found})
    each = [found[MIXED, seed] - max(found[kind, seed] for kind in SINGLE) for seed in seeds]
    return float(np.mean(each)), each


def _mix(tables: Tables) -> Claim:
    mean, each = _gains(tables)
    message = ", ".join(
        f"{row['heads']} {row['accuracy']:.3f} (cost {row['cost']:.2f})" for row in tables["kinds"]
    )
    note = (
        f"repeated letters, accuracy of {MIXED} in every layer less that of the better of all local"
        f" and all conv; all: {message}; interval: least and largest of"
        f" {numbered(len(each), 'seed')};"
        " reproduced if every seed gains"
    )
    verdict: Verdict = "reproduced" if min(each) > 0 else "not reproduced"
    return Claim(
        "a mix of local and convolved heads beats layers of one kind",
        "up to +0.7 BLEU",
        mean,
        (min(each), max(each)),
        verdict,
        note,
    )


def _even(tables: Tables) -> Claim:
    def columns(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
        return [row["evenness"] for row in rows], [row["accuracy"] for row in rows]

    rows = tables["runs"]
    without = [row for row in rows if row["heads"] != "all local"]
    value, (low, high) = (
        rank_correlation(*columns(rows)),
        rank_correlation_interval(*columns(rows), draws=1000),
    )
    note = (
        "rank correlation of evenness (entropy of the relevance map over its largest value) and"
        f" accuracy of {len(rows)} runs; without the runs of all local heads"
        f" {rank_correlation(*columns(without)):.2f}; interval: 95 %, runs drawn anew 1000 times;"
        " reproduced if all of it is above 0"
    )
    verdict: Verdict = "reproduced" if low > 0 else "not reproduced"
    return Claim(
        "the more alike the heads count, the better the model",
        "uniform relevance went with better BLEU",
        value,
        (low, high),
        verdict,
        note,
    )
