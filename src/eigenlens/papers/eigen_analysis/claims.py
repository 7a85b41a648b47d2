"""The claims of the eigen-analysis paper, their criteria, and the verdicts from the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...display import numbered, percent
from ..claims import Claim, Tables
from ..verdicts import judged

STATED = "stated; no figure was at hand"
RANK = 4
"""Rank of the eigenspaces that are compared."""
COMPONENTS = 64
"""Components of whole score matrices."""


def claims_of(tables: Tables, quick: bool = False) -> tuple[Claim, ...]:
    """The verdicts, from the tables alone."""
    return (
        _across(
            "most variation of score rows lies in a low-dimensional eigenspace",
            tables["dimensions"],
            "share of n",
            "share of the n dimensions that the median head needs for 90 % of held-out variance"
            " (centred); criterion: at most 25 %",
            at_most=0.25,
        ),
        _whole_matrices(tables["dimensions"]),
        _across(
            "eigenspaces overlap significantly between layers",
            tables["overlap"],
            "times chance",
            f"overlap of heads of different layers, rank {RANK}, over chance r/n; models without a"
            " mask; criterion: at least 3",
            at_least=3.0,
        ),
        _across(
            "eigenspaces overlap between models",
            tables["between models"],
            "times chance",
            f"overlap of heads of two models on the same texts, rank {RANK}, over chance r/n; pairs"
            " without a mask; criterion: at least 3",
            at_least=3.0,
        ),
        _estimated(tables["reconstruction"]),
        _trained(tables["training"]),
    )


def _across(
    claim: str, rows: Sequence[dict[str, Any]], key: str, note: str, **bound: float
) -> Claim:
    """The median over models, with the range of them as interval."""
    values = {
        "–".join(str(row[name]) for name in ("model", "left", "right") if name in row): row[key]
        for row in rows
        if row[key] is not None and not row.get("masked")
    }
    if not values:
        return Claim(
            claim, STATED, None, None, "out of reach", f"{note}; no model was at hand to measure it"
        )
    each = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    interval = (min(values.values()), max(values.values())) if len(values) > 1 else None
    return judged(
        claim, STATED, float(np.median(list(values.values()))), interval, f"{note}; {each}", **bound
    )


def _whole_matrices(rows: Sequence[dict[str, Any]]) -> Claim:
    """The claim about whole matrices, judged where each component comes from 4 inputs or more.

    A basis of few inputs holds little of others.
    """
    note = (
        f"held-out variance that {COMPONENTS} components hold in the median head (centred);"
        " criterion: at least half"
    )
    claim = _across(
        "most variation of whole score matrices lies in a low-dimensional eigenspace",
        rows,
        "of matrices",
        note,
        at_least=0.5,
    )
    fewest = min((row["matrices"] for row in rows if row["matrices"] is not None), default=0)
    if claim.measured is None or fewest >= 4 * COMPONENTS:
        return claim
    return replace(
        claim, verdict="out of reach", note=f"{claim.note}; {fewest} inputs are too few to judge"
    )


def _estimated(rows: Sequence[dict[str, Any]]) -> Claim:
    claim = "scores can be computed for a part of the token pairs and the rest estimated"
    note = (
        "held-out squared error over variance in the median head with 25 % of the keys computed"
        " (LMMSE, A-optimal keys)"
    )
    note += "; interval: quartiles of the heads; criterion: at most 10 %"
    if not rows:
        return Claim(
            claim,
            STATED,
            None,
            None,
            "out of reach",
            f"{note}; no model without a mask was at hand",
        )
    each = ", ".join(f"{percent(row['share'], 1)} of the keys {row['median']:.3f}" for row in rows)
    row = next(row for row in rows if row["share"] == 0.25)
    interval = (row["first quarter"], row["third quarter"])
    return judged(
        claim, STATED, row["median"], interval, f"{note}; {row['model']}: {each}", at_most=0.1
    )


def _trained(table: Sequence[dict[str, Any]]) -> Claim:
    """The claim about training, judged only where there is something to keep.

    Full attention must beat the mean row by 5 % of its loss.
    """
    claim = "transformers can be trained with the approximation"
    rows = {(row["mechanism"], row["protocol"], row["share"]): row for row in table}
    row, full, floor = (
        rows["interpolated", "learned", 0.25],
        rows["full", "tuned", 1.0],
        rows["mean only", "tuned", 0.0],
    )
    fixed = rows.get(("mean map", "tuned", 0.0))
    interval = None if row["kept_low"] is None else (row["kept_low"], row["kept_high"])
    note = (
        "share kept of what full attention gains over a constant mean row, W and b learned, 25 %"
        f" of the keys; {numbered(row['seeds'], 'seed')}; criterion: at least 90 %; loss"
        f" {row['loss']:.3f}, full {full['loss']:.3f}, mean row {floor['loss']:.3f};"
        f" {row['attention_cost']:.2f} of full attention's multiply-adds"
    )
    if fixed is not None:  # how much of it is position, for which no score is needed at all
        note += (
            f"; a fixed mean score for every pair of positions keeps {fixed['kept']:.2f}, loss"
            f" {fixed['loss']:.3f}"
        )
    if floor["loss"] - full["loss"] < 0.05 * full["loss"]:
        short = f"{note}; the model was trained too briefly to use its attention"
        return Claim(claim, STATED, row["kept"], interval, "out of reach", short)
    return judged(claim, STATED, row["kept"], interval, note, at_least=0.9)
