"""What the measurements say of the claims about fastmax."""

from __future__ import annotations

from ..claims import Claim, Tables
from ..fits import power_law_exponent
from ..verdicts import judged, judged_along

EXACT, QUIET = 1e-5, 1e-6


def claims_of(tables: Tables, _quick: bool) -> tuple[Claim, ...]:
    return (*_formula(tables), *_matrix(tables), *_causality(tables), *_costs(tables))


def _formula(tables: Tables) -> tuple[Claim, ...]:
    found = []
    for key, claim in (
        ("outputs", "the factorised form is the formula"),
        ("gradients", "so are its gradients"),
        ("row sums", "rows sum to one"),
    ):
        worst = max(row[key] for row in tables["agreement"])
        found.append(
            judged(
                claim,
                "exact",
                worst,
                None,
                f"reproduced if at most {EXACT:g}",
                f"largest difference of {len(tables['agreement'])} forms in float32",
                at_most=EXACT,
                reason=f"the claim: the largest difference is {worst:.1e}",
            )
        )
    return tuple(found)


def _matrix(tables: Tables) -> tuple[Claim, ...]:
    share = [row["rank"] / row["bound"] for row in tables["ranks"]]
    message = ", ".join(
        f"p={row['p']} D={row['D']}: {row['rank']} of {row['bound']}" for row in tables["ranks"]
    )
    kernel = {row["p"]: row for row in tables["kernels"]}
    negative, least = kernel[1]["share negative"], kernel[2]["least on [−20, 20]"]
    two = [row for row in tables["starts"] if row["mechanism"] == "fastmax p=2"]
    tokens, width = max(row["tokens"] for row in two), max(row["D"] for row in two)
    widest = [row for row in two if (row["tokens"], row["D"]) == (tokens, width)]
    even, stable = ([row[key] for row in widest] for key in ("entropy / ln N", "stable rank"))
    other = [
        row["stable rank"]
        for row in tables["starts"]
        if (row["mechanism"], row["tokens"], row["D"]) == ("softmax", tokens, width)
    ]
    where = f"N={tokens}, D={width}; interval: least and largest seed"
    entropy, rank = sum(even) / len(even), sum(stable) / len(stable)
    return (
        judged(
            "the rank of A is at most C(D+p, p)",
            "C(D+p, p)",
            max(share),
            (min(share), max(share)),
            "reproduced if at most 1",
            f"rank over bound, largest of {len(share)}; {message}; interval: least and largest",
            at_most=1.0,
            reason=f"the claim: a rank is {max(share):.2f} times the bound",
        ),
        judged(
            "the kernel of second order is positive",
            "≥ ½",
            least,
            None,
            "reproduced if at least ½",
            "least value on a grid of 40,001 scores",
            at_least=0.5,
            reason=f"the claim: it goes down to {least:.3f}",
        ),
        judged(
            "the kernel of first order is not, without a normalisation",
            "can go negative",
            negative,
            None,
            "reproduced if any is negative",
            "share of negative weights at normal queries and keys; our settings refuse it",
            at_least=1e-9,
            reason="the claim: no weight is negative",
        ),
        judged(
            "at the start it is nearly uniform",
            "entropy .999 ln N",
            entropy,
            (min(even), max(even)),
            "reproduced if it rounds to .999 or more",
            f"p=2, normal queries and keys, {where}",
            at_least=0.9985,
            reason=f"the claim: the entropy is {entropy:.4f} ln N",
        ),
        judged(
            "so one layer of it collapses in width, as random softmax does",
            "stable rank near 1 (mind the gap)",
            rank,
            (min(stable), max(stable)),
            "reproduced if below 1.1",
            f"stable rank behind one layer, {where}; softmax {sum(other) / len(other):.3f}",
            at_most=1.1,
            reason=f"the claim: the stable rank is {rank:.2f}",
        ),
    )


def _causality(tables: Tables) -> tuple[Claim, ...]:
    moved = {row["normalisation"]: row["moved"] for row in tables["leaks"]}
    leak = moved.pop("a maximum over all tokens")
    most = max(moved.values())
    return (
        judged(
            "a normalisation by token keeps the future out",
            "causal",
            most,
            None,
            f"reproduced if below {QUIET:g}",
            "largest change of an earlier output when the last token grows fivefold;"
            f" {', '.join(moved)}",
            at_most=QUIET,
            reason=f"the claim: an earlier output moves by {most:.1e}",
        ),
        judged(
            "a maximum over all tokens lets it in",
            "leaks under a causal mask",
            leak,
            None,
            f"reproduced if above {QUIET:g}",
            "the same with q and k over the largest length of all tokens",
            at_least=QUIET,
            reason=f"the claim: earlier outputs move by {leak:.1e} at most",
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
        last = max(rows, key=lambda row: row["tokens"])
        found += [
            judged(
                f"p={p}: time grows with the length",
                "O(N)",
                ratio,
                None,
                "reproduced if below 8",
                f"time at 4,096 tokens over that at 1,024; exponent from 1,024 up {slope:.2f}",
                at_most=8.0,
                reason=f"the claim: four times the tokens take {ratio:.1f} times the time",
            ),
            judged(
                f"p={p}: operations grow at most with D^{p + 1}",
                f"O(N D^{p + 1})",
                order,
                None,
                f"reproduced if at most {p + 1}",
                f"exponent between D={counted[-2]['D']} and D={counted[-1]['D']} as torch counts"
                " the products",
                at_most=p + 1.0,
                reason=f"the claim: they grow as D^{order:.2f}",
            ),
            judged_along(
                f"p={p}: faster than torch's softmax attention on this processor",
                "speeds up transformers",
                {f"{row['tokens']:,} tokens": row["to softmax"] for row in rows},
                f"{last['tokens']:,} tokens",
                None,
                "holds at a length where it takes less time",
                "time over that of softmax attention, causal, forward, one thread; measured: at"
                f" {last['tokens']:,} tokens",
                at_most=1.0,
                reason=(
                    f"the scale: at {last['tokens']:,} tokens it still takes"
                    f" {last['to softmax']:.2f} times as long"
                ),
            ),
        ]
    return tuple(found)
