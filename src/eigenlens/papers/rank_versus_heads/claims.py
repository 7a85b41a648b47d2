"""What the measurements of rank against number of heads say of the published claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Claim, Tables, Verdict
from ..verdicts import judged

FIGURES = {1: (0.93, 0.79, 0.69, 0.0), 8: (0.75, 0.56, 0.40, 0.0)}
"""Error by least squares at d = 8, N = 16 for ranks 1, 2, 4 and 8.

Once with rH = d, once with eight times the heads.
"""


def claims_of(tables: Tables, _quick: bool) -> tuple[Claim, ...]:
    squares = tables["least squares"]
    curve = {times: [row for row in squares if row["times"] == times] for times in FIGURES}
    d = max(row["rank"] for row in squares)
    drops = [a["error"] - b["error"] for rows in curve.values() for a, b in zip(rows, rows[1:])]
    full = max(row["high"] for row in squares if row["rank"] == d)
    half = next(row for row in squares if row["rank"] == d // 2 and row["times"] == 8)
    return (
        judged(
            "the error falls with the rank at the same rH",
            "monotone in r",
            min(drops),
            None,
            f"least fall from one rank to the next; {_describe(curve[1])} at rH = d,"
            f" {_describe(curve[8])} with 8 times the heads; reproduced if above 0",
            at_least=1e-9,
        ),
        judged(
            "one head of full rank finds the nearest point exactly",
            "error 0",
            full,
            None,
            "largest error at r = d; reproduced if below 1e-6",
            at_most=1e-6,
        ),
        judged(
            "heads of half the rank do not, with 8 times as many",
            "error .40",
            half["error"],
            (half["low"], half["high"]),
            "interval: least and largest seed; reproduced if above .3",
            at_least=0.3,
        ),
        _figures(curve),
        judged(
            "the theory of rank one is what is simulated",
            "error 1 − 2bᵀa + aᵀCa",
            max(row["farthest"] for row in tables["rank one"]),
            None,
            f"largest difference over {len(tables['rank one'])} numbers of heads and all seeds;"
            " reproduced if at most .02",
            at_most=0.02,
        ),
        _many(tables["rank one"]),
        *_training(tables["training"]),
        *_cut(tables["truncation"]),
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
    verdict: Verdict = "reproduced" if gap <= 0.05 else "not reproduced"
    note = (
        f"farthest at r = {row['rank']} with {times} d/r heads: {row['error']:.3f}; largest"
        f" difference {gap:.3f}; interval: least and largest seed; reproduced if at most .05 at"
        " every rank"
    )
    published = "; ".join(
        "/".join(f"{figure:.2f}" for figure in figures) for figures in FIGURES.values()
    )
    return Claim(
        "errors at d = 8, N = 16", published, row["error"], (row["low"], row["high"]), verdict, note
    )


def _many(rows: Sequence[dict[str, Any]]) -> Claim:
    last = max(rows, key=lambda row: row["heads"])
    note = (
        f"nearest: the error with {last['heads']} heads at one d, N = 2, q = k, by the theory of"
        f" rank one; with ever more of them it stays above {last['limit']:.3f}"
    )
    return Claim(
        "heads of rank one need very many",
        "exponentially many in d",
        last["theory"],
        None,
        "out of reach",
        note,
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
        if layers == 1:
            drop = judged(
                "trained, 1 layer: the error drops from half the rank to the full one",
                "≥ 10 times (d = 64: .70 to .015)",
                half["error"] / full["error"],
                (half["low"] / full["high"], half["high"] / full["low"]),
                f"{message} at d = {full['rank']}, rH = d; interval: seeds; reproduced if at least"
                " 10 times",
                at_least=10.0,
            )
            found.append(drop)
        size = "d² parameters" if layers == 1 else "d³ parameters"
        name = f"trained at d = 64, {layers} layer{'s' * (layers > 1)} of {size}, ranks 1/32/64"
        interval = (full["low"], full["high"]) if full["low"] < full["high"] else None
        note = (
            f"error at full rank of the miniature: d = {full['rank']}, rH = d, {message}; interval:"
            " seeds, if several"
        )
        found.append(Claim(name, published[layers], full["error"], interval, "out of reach", note))
    return found


def _cut(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """A claim that is not in the paper: what the rank of a loaded model's heads is worth."""
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        curve = [row for row in rows if row["model"] == model]
        half = next(row for row in curve if row["rank"] * 2 >= curve[-1]["rank"])
        message = ", ".join(f"{row['rank']}: {row['kept']:.3f}" for row in curve)
        note = f"kept at half the rank of every head, of {message}; reproduced if below .99"
        what = "not in the paper: that rank is of use is said of targets made for it"
        found.append(
            judged(
                f"{model} needs the rank of its heads", what, half["kept"], None, note, at_most=0.99
            )
        )
    return found
