"""The claims on the frozen operator, and what was measured of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...display import numbered
from ..claims import Claim, Tables
from ..verdicts import judged, judged_at
from .comparison import IN_OUT
from .cost_claims import cost_claims

Rows = Sequence[dict[str, Any]]
LIMITS = {"float64": ("largest error", 1e-10), "float32": ("relative error", 1e-4)}
GROUPS = {
    "BERT family": ("bert", "distilbert", "albert", "roberta"),
    "GPT-2": ("gpt2",),
    "Llama family": ("llama", "mistral", "qwen2", "gemma"),
    "ViT and DINOv2": ("vit", "dinov2"),
}
CLEARLY = (0.1, 0.25, 0.5)
"""How far apart, relative to their size, two operators may have to be to be different ones."""


def claims_of(tables: Tables, quick: bool = False) -> tuple[Claim, ...]:
    """Every claim, in the order: the operator, the Jacobian, cost, comparison."""
    exact = tables["exactness"]
    rows_of = {
        group: [r for r in exact if r["weights"] == "random" and r["model"] in names]
        for group, names in GROUPS.items()
    }
    loaded = [row for row in exact if row["weights"] == "catalogue"]
    groups = {
        **{f"{group}, random weights": rows for group, rows in rows_of.items() if rows},
        "catalogue weights": loaded,
    }
    return (
        *(_exact(group, rows, precision) for group, rows in groups.items() for precision in LIMITS),
        _complete([row for row in exact if row["precision"] == "float64"]),
        _causal([row for row in exact if row["largest a_ij of a later token"] is not None]),
        *_jacobian(tables["jacobian"]),
        *cost_claims(tables["cost"], tables["width"]),
        *_deletion(tables["pairs"], tables["areas"]),
    )


def _exact(group: str, rows: Rows, precision: str) -> Claim:
    column, limit = LIMITS[precision]
    rows = [row for row in rows if row["precision"] == precision]
    values = [row[column] for row in rows]
    relative = (
        f"; relative at most {max(row['relative error'] for row in rows):.1e}"
        if precision == "float64"
        else ""
    )
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    what = "largest |T·X + B − F(X)|" if precision == "float64" else "‖T·X + B − F(X)‖ / ‖F(X)‖"
    return judged(
        f"{group}, {precision}: F(X) = T(X)·X + B",
        "exact",
        max(values),
        (min(values), max(values)),
        f"reproduced if all are at most {limit:g}",
        f"{what} of {numbered(len(rows), 'run')} ({models}), over the tokens that are no padding,"
        f" F(X) from a run of its own{relative}; interval: least and largest",
        at_most=limit,
        reason=f"the claim: T·X + B is off F(X) by up to {max(values):.1e}",
    )


def _complete(rows: Rows) -> Claim:
    values = [row["completeness"] for row in rows]
    return judged(
        "In+Out is complete: Σ_j a_ij = ⟨y_i, y_i − B_i⟩",
        "exact",
        max(values),
        (min(values), max(values)),
        "reproduced if all are at most 1e-10",
        f"largest |Σ_j a_ij − ⟨y_i, y_i − B_i⟩| of {len(rows)} models and starts in float64, y from"
        " a run of its own; relative to the largest sum at most"
        f" {max(row['relative completeness'] for row in rows):.1e}; interval: least and largest",
        at_most=1e-10,
        reason=f"the claim: the sums are off by up to {max(values):.1e}",
    )


def _causal(rows: Rows) -> Claim:
    values = [row["largest a_ij of a later token"] for row in rows]
    return judged(
        "causal models give nothing for j > i",
        "0",
        max(values),
        (min(values), max(values)),
        "reproduced if it is 0, exactly",
        f"largest |a_ij| with j > i of {len(rows)} causal models, starts and precisions",
        at_most=0.0,
        reason=f"the claim: a later token has up to {max(values):.1e}",
    )


def _jacobian(rows: Rows) -> list[Claim]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        label = (
            row["model"]
            if row["weights"] == "pretrained"
            else f"small random models, {row['weights']}"
        )
        groups.setdefault(label, []).append(row)
    off = [row["‖JX+B−Y‖/‖Y‖"] for row in rows]
    return [
        *(_apart(label, some) for label, some in groups.items()),
        judged_at(
            "the Jacobian does not give the output back",
            "it does not",
            min(off),
            _clearly(min(off)),
            (min(off), max(off)),
            "holds where the least of all inputs is at least so far off",
            f"‖J·X + B − Y‖ / ‖Y‖, least of {len(rows)} inputs, all models above; of T at most"
            f" {max(row['‖TX+B−Y‖/‖Y‖'] for row in rows):.1e}; of J without B from"
            f" {min(row['‖JX−Y‖/‖Y‖'] for row in rows):.2f}; interval: least and largest",
            reason=f"the claim: an input has J·X + B off Y by {min(off):.2g} alone",
        ),
    ]


def _clearly(least: float) -> dict[str, bool]:
    return {f"{bound:g}": least >= bound for bound in CLEARLY}


def _apart(label: str, rows: Rows) -> Claim:
    """The mean is shown, and the verdict rests on the least value."""
    mean = {
        key: float(np.mean([row[key] for row in rows]))
        for key in ("‖T−J‖/‖T‖", "cosine of T and J")
    }
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    which = (
        f"{rows[0]['directions']} normal directions"
        if rows[0]["weights"] == "pretrained"
        else "the whole tensor"
    )
    values = [row["‖T−J‖/‖J‖"] for row in rows]
    least = min(values)
    return judged_at(
        f"{label}: T is not the Jacobian",
        "0.74 on a small model",
        float(np.mean(values)),
        _clearly(least),
        (least, max(values)),
        "holds where the least of all inputs is at least so far off",
        f"‖T − J‖ / ‖J‖ over {which}, mean of {numbered(len(rows), 'input')} of {models};"
        f" ‖T − J‖ / ‖T‖ is {mean['‖T−J‖/‖T‖']:.2f}, the cosine"
        f" {mean['cosine of T and J']:.2f}; interval: least and largest",
        reason=f"the claim: an input has ‖T − J‖ / ‖J‖ of {least:.2g} alone",
    )


def _deletion(pairs: Rows, areas: Rows) -> list[Claim]:
    """What the paper compares: In+Out beside attention and rollout, most relevant first."""
    area = {row["method"]: row for row in areas}
    claims = []
    for other in ("attention", "rollout"):
        (row,) = (
            r
            for r in pairs
            if (r["method"], r["against"], r["order"]) == (IN_OUT, other, "positive")
        )
        n = area[IN_OUT]["inputs"]
        made = judged_at(
            f"reviews: positive deletion area of In+Out is lower than that of {other}",
            "lower",
            row["gain"],
            {"the mean": row["gain"] > 0, "its whole 95 % interval": row["low"] > 0},
            (row["low"], row["high"]),
            "holds where it is above 0",
            "area under the probability of the class, most relevant tokens first,"
            f" {area[IN_OUT]['positive']:.4f} beside {area[other]['positive']:.4f} (random"
            f" {area['random']['positive']:.4f}); measured is by how much it is lower, mean of {n}"
            " inputs and its 95 % interval (paired bootstrap)",
            reason=f"the claim: over {n} inputs the area is larger by {-row['gain']:.3g}",
        )
        claims.append(made)
    return claims
