"""The claims of the eigen-analysis paper, their criteria, and the verdicts from the tables.

The paper's figures were not at hand, so a claim is judged along a curve: at several shares of the
variance, numbers of components, ranks, shares of the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...display import numbered, percent
from ...stats.within import SHARES
from ..claims import Claim, Tables
from ..verdicts import Interval, judged_along, out_of_reach

STATED = "stated; no figure was at hand"
RANK, RANKS = 4, (1, 2, 4, 8, 16)
"""Ranks of the eigenspaces that are compared; the first is the one that a claim shows."""
COMPONENTS = (1, 2, 4, 8, 16, 32, 64)
"""Components of whole score matrices."""
Rows = Sequence[dict[str, Any]]


def claims_of(tables: Tables, quick: bool = False) -> tuple[Claim, ...]:
    """The verdicts, from the tables alone."""
    return (
        _rows(tables["dimensions"]),
        _whole_matrices(tables["matrices"]),
        _overlap("eigenspaces overlap significantly between layers", tables["overlap"]),
        _overlap("eigenspaces overlap between models", tables["between models"]),
        _estimated(tables["reconstruction"], tables["estimators"]),
        _trained(tables["training"], quick),
    )


def _rows(table: Rows) -> Claim:
    """The dimension of score rows, as a share of n, at every share of the variance."""
    at = {
        share: {row["model"]: row[f"share of n, {share:.0%}"] for row in table} for share in SHARES
    }
    half, most = (
        ", ".join(f"{row['model']} {row[f'centred {share:.0%}']:g}" for row in table)
        for share in SHARES[:2]
    )
    note = (
        "share of the n dimensions that the median head needs (held out, centred), median of the"
        " models; interval: the models, at 90 % of the variance; components for half of it:"
        f" {half}; for 90 %: {most}; n: {', '.join(str(row['n']) for row in table)}"
    )
    return judged_along(
        "most variation of score rows lies in a low-dimensional eigenspace",
        STATED,
        {f"{percent(share)} of the variance": _median(each) for share, each in at.items()},
        "90 % of the variance",
        _range(at[0.9]),
        "holds at a share of the variance that takes at most 25 % of the n dimensions",
        note,
        at_most=0.25,
        reason=(
            "the claim: the median head needs"
            f" {percent(_median(at[0.5]))} of the n dimensions for half of the variance alone"
        ),
    )


def _whole_matrices(table: Rows) -> Claim:
    """The claim about whole matrices, judged where each component comes from 4 inputs or more.

    A basis of few inputs holds little of others.
    """
    claim = "most variation of whole score matrices lies in a low-dimensional eigenspace"
    missing = f"{4 * COMPONENTS[-1]} inputs for a basis of {COMPONENTS[-1]} components"
    if not table:
        return out_of_reach(claim, STATED, missing, "no study has whole matrices")
    last = max(row["components"] for row in table)
    curve, inside = (
        {
            kept: {row["model"]: row[key] for row in table if row["components"] == kept}
            for kept in sorted({row["components"] for row in table})
        }
        for key in ("held out", "in the sample")
    )
    each = ", ".join(f"{name} {value:.3g}" for name, value in curve[last].items())
    note = (
        "variance that so many components hold of held-out inputs in the median head (centred),"
        f" median of the models; interval: the models, at {last}; {last} components of"
        f" {table[0]['pairs']:,} pairs: {each}"
    )
    fewest = min(row["inputs"] for row in table)
    if fewest < 4 * last:
        short = f"{note}; {fewest} inputs are too few to judge"
        measured = _median(curve[last])
        return out_of_reach(claim, STATED, missing, short, measured=measured)
    seen, held = _median(inside[last]), _median(curve[last])
    why = (
        f"the claim: even of the inputs it was made from, a basis of {last} components holds"
        f" {percent(seen)}"
        if seen < 0.5
        else f"the scale: a basis of {last} components holds {percent(seen)} of the {fewest} inputs"
        f" it was made from and {percent(held)} of others"
    )
    return judged_along(
        claim,
        STATED,
        {f"{numbered(kept, 'component')}": _median(one) for kept, one in curve.items()},
        numbered(last, "component"),
        _range(curve[last]),
        "holds at a number of components that hold at least half of the variance",
        note,
        at_least=0.5,
        reason=why,
    )


def _overlap(claim: str, table: Rows) -> Claim:
    """Overlap over chance at every rank; models without a mask, the median of them."""
    at = {
        rank: {
            "–".join(str(row[name]) for name in ("model", "left", "right") if name in row): row[
                "times chance"
            ]
            for row in table
            if row["rank"] == rank and not row["masked"]
        }
        for rank in sorted({row["rank"] for row in table})
    }
    note = "overlap of the heads' eigenspaces, over chance r/n; models without a mask, their median"
    if not at.get(RANK):
        return out_of_reach(claim, STATED, "models without a mask", note)
    each = ", ".join(f"{name} {value:.3g}" for name, value in at[RANK].items())
    return judged_along(
        claim,
        STATED,
        {f"rank {rank}": _median(values) for rank, values in at.items() if values},
        f"rank {RANK}",
        _range(at[RANK]),
        "holds at a rank at which the overlap is at least 3 times chance",
        f"{note}; interval: the models, at rank {RANK}; rank {RANK}: {each}",
        at_least=3.0,
        reason=f"the claim: at rank {RANK} the overlap is {_median(at[RANK]):.2g} times chance",
    )


PARTLY = "scores can be computed for a part of the token pairs and the rest estimated"
LEAVES = "holds at a share at which at most 10 % of the variance is left"


def _estimated(table: Rows, others: Rows) -> Claim:
    note = (
        "squared error over variance on held-out inputs, median head (LMMSE from keys chosen"
        " A-optimally); interval: quartiles of the heads, at 25 % of the keys"
    )
    if not table:
        return out_of_reach(PARTLY, STATED, "a model without a mask", note)
    row = next(row for row in table if row["share"] == 0.25)
    best = row["best of rank m"]
    note += (
        f"; {row['model']}; with all scores of a row known, its {row['keys']} leading components"
        f" leave {best:.3f} at 25 %"
    )
    why = (
        f"the claim: a linear estimate from {row['keys']} of a row's scores cannot use more than as"
        f" many components, and the best ones leave {best:.3f}"
        if best > 0.1
        else f"the protocol: the best {row['keys']} components leave {best:.3f}, the keys that were"
        f" chosen {row['median']:.3f}"
    )
    if (joint := _median_error(others, "joint", 0.25)) is not None:
        why += f"; queries and keys in a quarter of their dimensions leave {joint:.3f}"
    return judged_along(
        PARTLY,
        STATED,
        {f"{percent(row['share'], 1)} of the keys": row["median"] for row in table},
        f"{percent(0.25, 1)} of the keys",
        (row["first quarter"], row["third quarter"]),
        LEAVES,
        note,
        at_most=0.1,
        reason=why,
    )


def _median_error(table: Rows, estimator: str, budget: float) -> float | None:
    return next(
        (
            row["score_error_median"]
            for row in table
            if (row["estimator"], row["budget"]) == (estimator, budget)
        ),
        None,
    )


def _trained(table: Rows, quick: bool) -> Claim:
    """The claim about training, judged only where there is something to keep.

    Full attention must beat the mean row by 5 % of its loss.
    """
    claim = "transformers can be trained with the approximation"
    rows = {(row["mechanism"], row["protocol"], row["share"]): row for row in table}
    full, floor = rows["full", "tuned", 1.0], rows["mean only", "tuned", 0.0]
    learned = {share: row for (name, how, share), row in rows.items() if (name, how) == LEARNED}
    row = learned[0.25]
    interval = None if row["kept_low"] is None else (row["kept_low"], row["kept_high"])
    note = (
        "share kept of what full attention gains over a constant mean row, W and b learned;"
        f" interval: Student's, {numbered(row['seeds'], 'seed')}, at 25 % of the keys; loss there"
        f" {row['loss']:.3f}, full {full['loss']:.3f}, mean row {floor['loss']:.3f};"
        f" {row['attention_cost']:.2f} of full attention's multiply-adds"
    )
    fixed = rows.get(("mean map", "tuned", 0.0))
    if fixed is not None:  # how much of it is position, for which no score is needed at all
        note += (
            f"; a fixed mean score for every pair of positions keeps {fixed['kept']:.2f}, loss"
            f" {fixed['loss']:.3f}"
        )
    if floor["loss"] - full["loss"] < 0.05 * full["loss"]:
        missing = "a model that was trained long enough to use its attention"
        return out_of_reach(claim, STATED, missing, note, measured=row["kept"], interval=interval)
    return judged_along(
        claim,
        STATED,
        {f"{percent(share, 1)} of the keys": one["kept"] for share, one in sorted(learned.items())},
        f"{percent(0.25, 1)} of the keys",
        interval,
        "holds at a share of the keys that keeps at least 90 %",
        note,
        at_least=0.9,
        reason=(
            f"the {'scale' if quick else 'claim'}: with a quarter of the keys"
            f" {percent(row['kept'])} is kept"
        ),
    )


LEARNED = ("interpolated", "learned")


def _median(values: Mapping[str, float]) -> float:
    return float(np.median(list(values.values())))


def _range(values: Mapping[str, float]) -> Interval:
    return (min(values.values()), max(values.values())) if len(values) > 1 else None
