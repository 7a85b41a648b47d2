"""The claims about the weights of keys, and what was measured of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...display import numbered, percent
from ..claims import Claim, Tables
from ..verdicts import judged

LEAST = "doubly normalised: least · S"


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    """Every claim; for the paper's benchmarks there is only a miniature."""
    return (*_mathematics(tables), *_models(tables), *_training(tables))


def _mathematics(tables: Tables) -> tuple[Claim, ...]:
    random, edge = tables["random scores"], tables["tightness"]
    least = min(row[LEAST] for row in [*random, *edge])
    off = max(row["doubly normalised: rows off 1"] for row in random)
    lost = min(row["softmax: least · S"] / row["S"] for row in random)
    apart = max(row["largest difference"] for row in tables["mixtures"])
    moved = max(row["earlier patterns move by"] for row in tables["causal"])
    where = f"{len(random)} sizes and scales of random scores"
    return (
        judged(
            "doubly normalised, every key keeps a weight of at least 1/S",
            "column sums ≥ 1/S",
            least,
            None,
            f"the least weight times S, {where} and {len(edge)} at the edge; rows sum to 1 within"
            f" {off:.1e}; reproduced if at least 1 − 1e-6",
            at_least=1 - 1e-6,
        ),
        judged(
            "the bound is tight",
            "attained",
            min(row[LEAST] for row in edge),
            None,
            "the least weight times S where one query outbids all others for every key; reproduced"
            " if at most 1.001",
            at_most=1.001,
        ),
        judged(
            "softmax has no such bound",
            "column sums down to 1e-28",
            lost,
            None,
            f"the least weight of a key, {where}; reproduced if at most 1e-20",
            at_most=1e-20,
        ),
        judged(
            "both patterns are posteriors of Gaussian mixtures",
            "keys, or queries, as centres",
            apart,
            None,
            "the largest difference of patterns and outputs from those of the densities; reproduced"
            " if at most 1e-10",
            at_most=1e-10,
        ),
        judged(
            "a causal mask would leak the future through the step over queries",
            "not in the paper",
            moved,
            None,
            "the most that weights of earlier queries move with the last one; reproduced if at"
            " least 0.01; the mechanism refuses such a mask",
            at_least=0.01,
        ),
    )


def _models(tables: Tables) -> tuple[Claim, ...]:
    rows = tables["models"]
    softmax = [row for row in rows if row["attention"] == "softmax"]
    both = [row for row in rows if row["attention"] == "doubly normalised"]
    shares = [row["keys below 1/S"] for row in softmax]
    message = ", ".join(
        f"{row['model']} {percent(row['keys below 1/S'], 2)} (least {row['least']:.0e})"
        for row in softmax
    )
    made = [
        Claim(
            "trained transformers explain keys away",
            "they tend to",
            sum(shares) / len(shares),
            (min(shares), max(shares)),
            "reproduced" if min(shares) >= 0.01 else "not reproduced",
            "share of keys of all heads with a weight below 1/S, mean of the models, interval:"
            f" least and largest model; {message}; reproduced if at least 1 % in every model",
        )
    ]
    if both:
        names = ", ".join(f"{row['model']} least {row['least'] * row['S']:.3g}/S" for row in both)
        made.append(
            judged(
                "on the same scores the doubly normalised pattern explains none away",
                "none below 1/S",
                max(row["keys below 1/S"] for row in both),
                None,
                "share of keys below 1/S, the largest of the models without a causal mask;"
                f" {names}; reproduced if none",
                at_most=0.0,
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
                Claim(
                    f"models trained {name} are better (here: {task})",
                    "better on several benchmarks",
                    sum(gains) / len(gains),
                    (min(gains), max(gains)),
                    "out of reach",
                    f"miniature, {task}: nats of held-out loss gained over softmax after"
                    f" {some[0]['steps']} steps (above 0 is better);"
                    f" {numbered(len(gains), 'seed')}, interval: least and largest;"
                    f" softmax {_mean(some, 'loss'):.3f} nats,"
                    f" {percent(_mean(some, 'accuracy'), 1)} right",
                )
            )
    return tuple(made)


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    return sum(float(row[key]) for row in rows) / len(rows)
