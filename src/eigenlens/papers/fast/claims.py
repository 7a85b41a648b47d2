"""What the measurements say of the claims about fastmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Claim, Tables
from ..fits import power_law_exponent
from ..verdicts import judged

EXACT, QUIET = 1e-5, 1e-6


def claims_of(tables: Tables, _quick: bool) -> tuple[Claim, ...]:
    return (*_formula(tables), *_matrix(tables), *_causality(tables), *_costs(tables))


def break_even(rows: Sequence[dict[str, Any]], kind: str) -> float | None:
    """The measured length from which on the mechanism takes less time than softmax.

    None if there is none.
    """
    found = None
    for row in sorted(
        (row for row in rows if row["mechanism"] == kind), key=lambda row: -row["tokens"]
    ):
        if row["to softmax"] >= 1:
            break
        found = float(row["tokens"])
    return found


def _formula(tables: Tables) -> tuple[Claim, ...]:
    found = []
    for key, claim in (
        ("outputs", "the factorised form is the formula"),
        ("gradients", "so are its gradients"),
        ("row sums", "rows sum to one"),
    ):
        worst = max(row[key] for row in tables["agreement"])
        note = (
            f"largest difference of {len(tables['agreement'])} forms in float32; reproduced if at"
            f" most {EXACT:g}"
        )
        found.append(judged(claim, "exact", worst, None, note, at_most=EXACT))
    return tuple(found)


def _matrix(tables: Tables) -> tuple[Claim, ...]:
    share = [row["rank"] / row["bound"] for row in tables["ranks"]]
    message = ", ".join(
        f"p={row['p']} D={row['D']}: {row['rank']} of {row['bound']}" for row in tables["ranks"]
    )
    kernel = {row["p"]: row for row in tables["kernels"]}
    negative = kernel[1]["share negative"]
    two = [row for row in tables["starts"] if row["mechanism"] == "fastmax p=2"]
    tokens, width = max(row["tokens"] for row in two), max(row["D"] for row in two)
    widest = [row for row in two if (row["tokens"], row["D"]) == (tokens, width)]
    even, stable = ([row[key] for row in widest] for key in ("entropy / ln N", "stable rank"))
    other = [
        row["stable rank"]
        for row in tables["starts"]
        if (row["mechanism"], row["tokens"], row["D"]) == ("softmax", tokens, width)
    ]
    most = max(abs(row["fastmax p=2"] / row["5/(N+4)"] - 1) for row in tables["sharpest"])
    last = tables["sharpest"][-1]
    return (
        judged(
            "the rank of A is at most C(D+p, p)",
            "C(D+p, p)",
            max(share),
            (min(share), max(share)),
            f"rank over bound, largest of {len(share)}; {message}; interval: least and largest;"
            " reproduced if at most 1",
            at_most=1.0,
        ),
        judged(
            "the kernel of second order is positive",
            "≥ ½",
            kernel[2]["least on [−20, 20]"],
            None,
            "least value on a grid of 40,001 scores; reproduced if at least ½",
            at_least=0.5,
        ),
        Claim(
            "the kernel of first order is not, without a normalisation",
            "can go negative",
            negative,
            None,
            "reproduced" if negative > 0 else "not reproduced",
            "share of negative weights at normal queries and keys; reproduced if there are any; our"
            " settings refuse it",
        ),
        judged(
            "at the start it is nearly uniform",
            "entropy .999 ln N",
            sum(even) / len(even),
            (min(even), max(even)),
            f"p=2, normal queries and keys, N={tokens}, D={width}; interval: least and largest"
            " seed; reproduced if it rounds to .999 or more",
            at_least=0.9985,
        ),
        judged(
            "so one layer of it collapses in width, as random softmax does",
            "stable rank near 1 (mind the gap)",
            sum(stable) / len(stable),
            (min(stable), max(stable)),
            f"stable rank behind one layer, N={tokens}, D={width}; softmax"
            f" {sum(other) / len(other):.3f}; interval: least and largest seed; reproduced if"
            " below 1.1",
            at_most=1.1,
        ),
        judged(
            "unit vectors: no key gets more than 5/(N+4) of a query (p=2)",
            "not in the paper: f(1)/f(−1) = 5",
            most,
            None,
            "largest relative distance of the most extreme case from 5/(N+4); at"
            f" N={last['tokens']} it is {last['fastmax p=2']:.4f}, p=1 {last['fastmax p=1']:.4f},"
            f" softmax {last['softmax']:.4f}; reproduced if at most 1e-9",
            at_most=1e-9,
        ),
    )


def _causality(tables: Tables) -> tuple[Claim, ...]:
    moved = {row["normalisation"]: row["moved"] for row in tables["leaks"]}
    leak = moved.pop("a maximum over all tokens")
    return (
        judged(
            "a normalisation by token keeps the future out",
            "causal",
            max(moved.values()),
            None,
            "largest change of an earlier output when the last token grows fivefold;"
            f" {', '.join(moved)}; reproduced if below {QUIET:g}",
            at_most=QUIET,
        ),
        judged(
            "a maximum over all tokens lets it in",
            "leaks under a causal mask",
            leak,
            None,
            "the same with q and k over the largest length of all tokens; reproduced if above"
            f" {QUIET:g}",
            at_least=QUIET,
        ),
    )


def _costs(tables: Tables) -> tuple[Claim, ...]:
    found = []
    for p in (1, 2):
        rows = [row for row in tables["times"] if row["mechanism"] == f"fastmax p={p}"]
        at = {row["tokens"]: row["milliseconds"] for row in rows}
        long = [row for row in rows if row["tokens"] >= 1024]
        counted = [row for row in tables["operations"] if row["p"] == p]
        ratio, slope = at[4096] / at[1024], power_law_exponent(long, "tokens", "milliseconds")
        order = power_law_exponent(counted[-2:], "D", "multiply-adds")
        even = break_even(tables["times"], f"fastmax p={p}")
        found += [
            judged(
                f"p={p}: time grows with the length",
                "O(N)",
                ratio,
                None,
                f"time at 4,096 tokens over that at 1,024; exponent from 1,024 up {slope:.2f};"
                " reproduced if below 8",
                at_most=8.0,
            ),
            judged(
                f"p={p}: operations grow at most with D^{p + 1}",
                f"O(N D^{p + 1})",
                order,
                None,
                f"exponent between D={counted[-2]['D']} and D={counted[-1]['D']} as torch counts"
                f" the products; reproduced if at most {p + 1}",
                at_most=p + 1.0,
            ),
            Claim(
                f"p={p}: faster than torch's softmax attention on this processor",
                "measured from N=256 up",
                even,
                None,
                "reproduced" if even is not None and even <= 4096 else "not reproduced",
                "tokens from which on it takes less time at every measured length (causal, forward,"
                " one thread); reproduced if at most 4,096",
            ),
        ]
    return tuple(found)
