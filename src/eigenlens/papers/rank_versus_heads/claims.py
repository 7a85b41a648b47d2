"""What the measurements of rank against number of heads say of the published claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Claim, Tables
from ..verdicts import judged, judged_if, out_of_reach

FIGURES = {1: (0.93, 0.79, 0.69, 0.0), 8: (0.75, 0.56, 0.40, 0.0)}
"""Error by least squares at d = 8, N = 16 for ranks 1, 2, 4 and 8.

Once with rH = d, once with eight times the heads.
"""


LARGE = "models of d = 64"


def claims_of(tables: Tables, _quick: bool) -> tuple[Claim, ...]:
    squares = tables["least squares"]
    curve = {times: [row for row in squares if row["times"] == times] for times in FIGURES}
    d = max(row["rank"] for row in squares)
    drop = min(a["error"] - b["error"] for rows in curve.values() for a, b in zip(rows, rows[1:]))
    full = max(row["high"] for row in squares if row["rank"] == d)
    half = next(row for row in squares if row["rank"] == d // 2 and row["times"] == 8)
    far = max(row["farthest"] for row in tables["rank one"])
    both = f"{_describe(curve[1])} at rH = d, {_describe(curve[8])} with 8 times the heads"
    return (
        judged(
            "the error falls with the rank at the same rH",
            "monotone in r",
            drop,
            None,
            "reproduced if above 0",
            f"least fall from one rank to the next; {both}",
            at_least=1e-9,
            reason=f"the claim: from one rank to the next it changes by {-drop:.3f}: {both}",
        ),
        judged(
            "one head of full rank finds the nearest point exactly",
            "error 0",
            full,
            None,
            "reproduced if below 1e-6",
            "largest error at r = d",
            at_most=1e-6,
            reason=f"the claim: its error is {full:.1e}",
        ),
        judged(
            "heads of half the rank do not, with 8 times as many",
            "error .40",
            half["error"],
            (half["low"], half["high"]),
            "reproduced if above .3",
            "interval: least and largest seed",
            at_least=0.3,
            reason=f"the claim: their error is {half['error']:.3f}",
        ),
        _figures(curve),
        judged(
            "the theory of rank one is what is simulated",
            "error 1 − 2bᵀa + aᵀCa",
            far,
            None,
            "reproduced if at most .02",
            f"largest difference over {len(tables['rank one'])} numbers of heads and all seeds",
            at_most=0.02,
            reason=f"the protocol: our samples give an error {far:.3f} from the theory",
        ),
        _many(tables["rank one"]),
        *_training(tables["training"]),
    )


def _describe(rows: Sequence[dict[str, Any]]) -> str:
    return "/".join(f"{row['error']:.2f}" for row in rows)


def _figures(curve: dict[int, list[dict[str, Any]]]) -> Claim:
    apart = [
        (abs(row["error"] - figure), times, row)
        for times, rows in curve.items()
        for figure, row in zip(FIGURES[times], rows)
    ]
    gap, times, row = max(apart, key=lambda item: item[0])
    others = max((off for off, _, one in apart if one["rank"] != row["rank"]), default=0.0)
    published = "; ".join(
        "/".join(f"{figure:.2f}" for figure in figures) for figures in FIGURES.values()
    )
    return judged_if(
        gap <= 0.05,
        "errors at d = 8, N = 16",
        published,
        row["error"],
        (row["low"], row["high"]),
        "reproduced if at most .05 off at every rank",
        f"farthest at r = {row['rank']} with {times} d/r heads: {row['error']:.3f}; largest"
        f" difference {gap:.3f}; interval: least and largest seed",
        reason=(
            "the protocol: how subspaces are drawn and heads weighed is not stated; by our reading"
            f" rank {row['rank']} is off by {gap:.3f}, the other ranks by {others:.3f} at most"
        ),
    )


def _many(rows: Sequence[dict[str, Any]]) -> Claim:
    last = max(rows, key=lambda row: row["heads"])
    return out_of_reach(
        "heads of rank one need very many",
        "exponentially many in d",
        "a proof over all d, and many widths",
        f"the error with {last['heads']} heads at one d, N = 2, q = k, by the theory of rank one;"
        f" with ever more of them it stays above {last['limit']:.3f}",
        measured=last["theory"],
    )


def _training(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    found = []
    published = {1: ".87/.70/.015", 3: ".52/.055/.0008"}
    for layers in dict.fromkeys(row["layers"] for row in rows):
        curve = [row for row in rows if row["layers"] == layers]
        half, full = curve[-2], curve[-1]
        ranks, errors = (
            "/".join(str(row["rank"]) for row in curve),
            "/".join(f"{row['error']:.3f}" for row in curve),
        )
        message = f"ranks {ranks}: {errors}"
        drop = half["error"] / full["error"]
        if layers == 1:
            found.append(
                judged(
                    f"trained at d = {full['rank']}, 1 layer: the error drops from half the rank to"
                    " the full one",
                    "≥ 10 times (d = 64: .70 to .015)",
                    drop,
                    (half["low"] / full["high"], half["high"] / full["low"]),
                    "reproduced if at least 10 times",
                    f"{message} at rH = d; interval: seeds",
                    at_least=10.0,
                    reason=f"the scale: after this training it drops {drop:.2f} times: {errors}",
                )
            )
        size = "d² parameters" if layers == 1 else "d³ parameters"
        found.append(
            out_of_reach(
                f"trained at d = 64, {layers} layer{'s' * (layers > 1)} of {size}, ranks 1/32/64",
                published[layers],
                LARGE,
                f"error at full rank of the miniature: d = {full['rank']}, rH = d, {message};"
                " interval: seeds, if several",
                measured=full["error"],
                interval=(full["low"], full["high"]) if full["low"] < full["high"] else None,
            )
        )
    return found
