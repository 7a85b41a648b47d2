"""The claims on the frozen operator, and what was measured of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...display import numbered
from ..claims import Claim, Tables
from ..fits import power_law_exponent
from ..verdicts import judged
from .comparison import IN_OUT, NORM

Rows = Sequence[dict[str, Any]]
LIMITS = {"float64": ("largest error", 1e-10), "float32": ("relative error", 1e-4)}
GROUPS = {
    "BERT family": ("bert", "distilbert", "albert", "roberta"),
    "GPT-2": ("gpt2",),
    "Llama family": ("llama", "mistral", "qwen2", "gemma"),
    "ViT and DINOv2": ("vit", "dinov2"),
}
CLEARLY = 0.1


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
        *_cost(tables["cost"], tables["width"]),
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
    note = (
        f"{what} of {numbered(len(rows), 'run')} ({models}), over the tokens that are no"
        f" padding, F(X) from a run of its own{relative}; interval: least and largest;"
        " reproduced if all are below"
        f" {limit:g}"
    )
    return judged(
        f"{group}, {precision}: F(X) = T(X)·X + B",
        "exact",
        max(values),
        (min(values), max(values)),
        note,
        at_most=limit,
    )


def _complete(rows: Rows) -> Claim:
    values = [row["completeness"] for row in rows]
    note = (
        f"largest |Σ_j a_ij − ⟨y_i, y_i − B_i⟩| of {len(rows)} models and starts in float64, y from"
        " a run of its own; relative to the largest sum at most"
        f" {max(row['relative completeness'] for row in rows):.1e}; interval: least and largest;"
        " reproduced if all are below 1e-10"
    )
    return judged(
        "In+Out is complete: Σ_j a_ij = ⟨y_i, y_i − B_i⟩",
        "exact",
        max(values),
        (min(values), max(values)),
        note,
        at_most=1e-10,
    )


def _causal(rows: Rows) -> Claim:
    values = [row["largest a_ij of a later token"] for row in rows]
    note = (
        f"largest |a_ij| with j > i of {len(rows)} causal models, starts and precisions; reproduced"
        " if it is 0, exactly"
    )
    return judged(
        "causal models give nothing for j > i",
        "0",
        max(values),
        (min(values), max(values)),
        note,
        at_most=0.0,
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
    claims = [_apart(label, some) for label, some in groups.items()]
    off = [row["‖JX+B−Y‖/‖Y‖"] for row in rows]
    note = (
        f"‖J·X + B − Y‖ / ‖Y‖, least of {len(rows)} inputs, all models above; of T at most"
        f" {max(row['‖TX+B−Y‖/‖Y‖'] for row in rows):.1e}; of J without B from"
        f" {min(row['‖JX−Y‖/‖Y‖'] for row in rows):.2f}; interval: least and largest; reproduced if"
        f" the least is above {CLEARLY}"
    )
    what = "the Jacobian does not give the output back"
    return [
        *claims,
        judged(what, "it does not", min(off), (min(off), max(off)), note, at_least=CLEARLY),
    ]


def _apart(label: str, rows: Rows) -> Claim:
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
    note = (
        f"‖T − J‖ / ‖J‖ over {which}, mean of {numbered(len(rows), 'input')} of {models};"
        f" ‖T − J‖ / ‖T‖ is {mean['‖T−J‖/‖T‖']:.2f}, the cosine"
        f" {mean['cosine of T and J']:.2f}; interval: least and"
        f" largest; reproduced if the least is above {CLEARLY}"
    )
    values = [row["‖T−J‖/‖J‖"] for row in rows]
    return _above(f"{label}: T is not the Jacobian", "0.74 on a small model", values, CLEARLY, note)


def _above(claim: str, published: str, values: Sequence[float], limit: float, note: str) -> Claim:
    """A claim whose mean is shown and whose verdict rests on the least value."""
    low, high = min(values), max(values)
    verdict = judged(claim, published, low, None, note, at_least=limit).verdict
    return Claim(claim, published, float(np.mean(values)), (low, high), verdict, note)


def _cost(rows: Rows, widths: Rows) -> list[Claim]:
    ratios, freezing = ([row[f"{what} / forward"] for row in rows] for what in ("row", "freeze"))
    last = max(rows, key=lambda row: row["tokens"])
    span = f"{min(r['tokens'] for r in rows)} to {last['tokens']} tokens of {last['model']}"
    note = (
        f"time of one row of T (Tᵀu) over that of a forward pass, at {span}, in turns, median of"
        f" rounds; measured is the largest; freezing takes {min(freezing):.1f} to"
        f" {max(freezing):.1f}"
        " passes, once per input; interval: least and largest; reproduced if a row takes at most 2"
        " passes"
    )
    time = judged(
        "a row of T costs about a forward pass",
        "one backward pass of the frozen graph",
        max(ratios),
        (min(ratios), max(ratios)),
        note,
        at_most=2.0,
    )
    shares = [row["graph and row / whole"] for row in rows]
    note = (
        "memory of the frozen graph and of one row over that of the whole tensor, at"
        f" {last['tokens']} tokens ({last['graph MB']:.0f} MB and {last['row MB']:.1f} MB over"
        f" {last['whole MB']:,.0f} MB); interval: least and largest over lengths; reproduced if it"
        " is at most 1 %"
    )
    memory = judged(
        "rows need no whole tensor",
        "never built",
        shares[rows.index(last)],
        (min(shares), max(shares)),
        note,
        at_most=0.01,
    )
    by_tokens, by_width = (
        power_law_exponent(rows, "tokens", "row MB"),
        power_law_exponent(widths, "channels", "row MB"),
    )
    grows = (
        power_law_exponent(rows, "tokens", "graph MB"),
        power_law_exponent(widths, "channels", "graph MB"),
    )
    note = (
        f"memory of one row grows as n^{by_tokens:.2f} in tokens ({span}) and as d^{by_width:.2f}"
        f" in channels ({min(r['channels'] for r in widths)} to"
        f" {max(r['channels'] for r in widths)} of a random BERT), the frozen graph as"
        f" n^{grows[0]:.2f} and d^{grows[1]:.2f}, the whole tensor as n² d²; measured is the"
        " largest exponent, interval: least and largest of the four; reproduced if all are below 2"
    )
    found = (by_tokens, by_width, *grows)
    growth = judged(
        "memory does not grow as (n·d)²",
        "below 2",
        max(found),
        (min(found), max(found)),
        note,
        at_most=2 - 1e-9,
    )
    return [time, memory, growth]


def _deletion(pairs: Rows, areas: Rows) -> list[Claim]:
    area = {row["method"]: row for row in areas}
    claims = []
    for method, order, sense in (
        (IN_OUT, "positive", "lower"),
        (IN_OUT, "negative", "higher"),
        (NORM, "positive", "lower"),
        (NORM, "negative", "higher"),
    ):
        for other in ("attention", "rollout"):
            row = next(
                r
                for r in pairs
                if (r["method"], r["against"], r["order"]) == (method, other, order)
            )
            published = (
                sense if (method, order) == (IN_OUT, "positive") else f"– (expected: {sense})"
            )
            first = "most" if order == "positive" else "least"
            note = (
                f"area under the probability of the class, {first} relevant tokens first,"
                f" {area[method][order]:.4f} beside {area[other][order]:.4f} (random"
                f" {area['random'][order]:.4f}); measured is by how much it is {sense}, mean"
                " of"
                f" {area[method]['inputs']} inputs and its 95 % interval (paired bootstrap);"
                " reproduced if that is above 0"
            )
            verdict = judged("", "", row["low"], None, "", at_least=np.nextafter(0, 1)).verdict
            claims.append(
                Claim(
                    f"reviews: {order} deletion area of {method.removeprefix('TensorLens ')} is"
                    f" {sense} than that of {other}",
                    published,
                    row["gain"],
                    (row["low"], row["high"]),
                    verdict,
                    note,
                )
            )
    return claims
