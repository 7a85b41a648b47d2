"""The claims about the weights of keys, and what was measured of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...display import numbered, percent
from ..claims import Claim, Tables
from ..verdicts import judged, judged_along, out_of_reach

LEAST = "doubly normalised: least · S"
EXPLAINED = 0.01
"""The share of keys below 1/S from which on a model is said to explain keys away."""


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    """Every claim; for the paper's benchmarks there is only a miniature."""
    return (*_mathematics(tables), *_models(tables), *_training(tables))


def _mathematics(tables: Tables) -> tuple[Claim, ...]:
    random, edge = tables["random scores"], tables["tightness"]
    least = min(row[LEAST] for row in [*random, *edge])
    at_edge = min(row[LEAST] for row in edge)
    off = max(row["doubly normalised: rows off 1"] for row in random)
    lost = min(row["softmax: least · S"] / row["S"] for row in random)
    apart = max(row["largest difference"] for row in tables["mixtures"])
    where = f"{len(random)} sizes and scales of random scores"
    return (
        judged(
            "doubly normalised, every key keeps a weight of at least 1/S",
            "column sums ≥ 1/S",
            least,
            None,
            "reproduced if at least 1 − 1e-6",
            f"the least weight times S, {where} and {len(edge)} at the edge; rows sum to 1 within"
            f" {off:.1e}",
            at_least=1 - 1e-6,
            reason=f"the claim: a key keeps {least:.3g}/S",
        ),
        judged(
            "the bound is tight",
            "attained",
            at_edge,
            None,
            "reproduced if at most 1.001",
            "the least weight times S where one query outbids all others for every key",
            at_most=1.001,
            reason=f"the claim: no key comes below {at_edge:.3f}/S",
        ),
        judged(
            "softmax has no such bound",
            "column sums down to 1e-28",
            lost,
            None,
            "reproduced if at most 1e-20",
            f"the least weight of a key, {where}",
            at_most=1e-20,
            reason=f"the scale: random scores as large as these leave a key {lost:.1e}",
        ),
        judged(
            "both patterns are posteriors of Gaussian mixtures",
            "keys, or queries, as centres",
            apart,
            None,
            "reproduced if at most 1e-10",
            "the largest difference of patterns and outputs from those of the densities",
            at_most=1e-10,
            reason=f"the claim: they are {apart:.1e} apart",
        ),
    )


def _models(tables: Tables) -> tuple[Claim, ...]:
    rows = tables["models"]
    softmax = [row for row in rows if row["attention"] == "softmax"]
    both = [row for row in rows if row["attention"] == "doubly normalised"]
    most = max(softmax, key=lambda row: row["keys below 1/S"])
    shares = [row["keys below 1/S"] for row in softmax]
    message = ", ".join(
        f"{row['model']} {percent(row['keys below 1/S'], 2)} (least {row['least']:.0e})"
        for row in softmax
    )
    made = [
        judged_along(
            "trained transformers explain keys away",
            "they tend to",
            {row["model"]: row["keys below 1/S"] for row in softmax},
            most["model"],
            (min(shares), max(shares)),
            f"holds for a model if at least {percent(EXPLAINED)} of the keys of all heads have a"
            " weight below 1/S",
            f"measured: the largest share of a model, interval: least and largest model; {message}",
            at_least=EXPLAINED,
            reason=f"the claim: the share is {percent(max(shares), 2)} at most",
        )
    ]
    if both:
        names = ", ".join(f"{row['model']} least {row['least'] * row['S']:.3g}/S" for row in both)
        worst = max(row["keys below 1/S"] for row in both)
        made.append(
            judged(
                "on the same scores the doubly normalised pattern explains none away",
                "none below 1/S",
                worst,
                None,
                "reproduced if none",
                "share of keys below 1/S, the largest of the models without a causal mask;"
                f" {names}",
                at_most=0.0,
                reason=f"the claim: {percent(worst, 2)} of the keys are below 1/S",
            )
        )
    return tuple(made)


def _training(tables: Tables) -> tuple[Claim, ...]:
    """The claims about training.

    Runs of one task and seed are compared: they begin with the same weights and see the same
    inputs.
    """
    made = []
    rows = {(row["task"], row["mechanism"], row["seed"]): row["loss"] for row in tables["training"]}
    for name in ("doubly-normalised", "hybrid-normalised"):
        for task in dict.fromkeys(row["task"] for row in tables["training"]):
            some = [
                row
                for row in tables["training"]
                if row["task"] == task and row["mechanism"] == "softmax"
            ]
            gains = [row["loss"] - rows[task, name, row["seed"]] for row in some]
            made.append(
                out_of_reach(
                    f"models trained {name} are better (here: {task})",
                    "better on several benchmarks",
                    "the paper's benchmarks and models",
                    f"miniature, {task}: nats of held-out loss gained over softmax after"
                    f" {some[0]['steps']} steps (above 0 is better);"
                    f" {numbered(len(gains), 'seed')}, interval: least and largest; softmax"
                    f" {_mean(some, 'loss'):.3f} nats, {percent(_mean(some, 'accuracy'), 1)} right",
                    measured=sum(gains) / len(gains),
                    interval=(min(gains), max(gains)),
                )
            )
    return tuple(made)


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return sum(float(row[key]) for row in rows) / len(rows)
