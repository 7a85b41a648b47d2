"""What the paper claims of scores within one input, and what is measured of the catalogue's models.

The ranges are the paper's, for 90 % of the energy: 2–11 components of row-centred scores, 38–75 of
the query-key matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...display import percent
from ...spectra.within import IN_WORDS
from ...stats.within import SHARES
from ..claims import Claim, Tables
from ..verdicts import judged_along, out_of_reach

FEW = 0.25
"""The share of the d components up to which a matrix counts as low-dimensional."""
RATIO = 11 / 38
"""The most of one input's components per component of the weights that the paper's ranges allow."""
MODELS = "GPT-2, Llama-3.2-1B and 3B, Qwen2.5-3B and Mistral-7B, none of which is here"
DECODERS = ("stories15m", "smollm2")
"""The catalogue's nearest to the paper's models."""


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    """The two ranges, the statement on each model here, and along the length of inputs."""
    models = list(dict.fromkeys(row["model"] for row in tables["spectra"]))
    return (
        *_ranges(tables, models),
        *(claim for model in models for claim in _of_model(tables, model)),
        _growth(tables["growth"]),
    )


def _ranges(tables: Tables, models: Sequence[str]) -> Iterator[Claim]:
    """The figures themselves, which are about models that are not here."""
    known = [model for model in models if model in DECODERS] or list(models)
    for what, words, published in (
        ("centred", "row-centred scores of one input reach 90 % of their energy", "2–11"),
        ("weights", "W_QᵀW_K reaches 90 % of its energy", "38–75"),
    ):
        rows = [row for row in (_row(tables, model, what) for model in known) if row]
        note = "; ".join(
            f"{row['model']} {row['90 %']:g} of {row['d']} ({row['least']}–{row['most']})"
            for row in rows
        )
        first = rows[-1] if rows else None
        yield out_of_reach(
            f"{words} in so many components",
            f"{published}, in 5,888 key-value heads",
            MODELS,
            f"beside it the median head of {first['model']}; interval: its heads; {note}"
            if first
            else "",
            measured=first["90 %"] if first else None,
            interval=(first["least"], first["most"]) if first else None,
        )


def _of_model(tables: Tables, model: str) -> Iterator[Claim]:
    """The statement on one model: few components in an input, and fewer than in the weights."""
    row, weights = _row(tables, model, "centred"), _row(tables, model, "weights")
    assert row is not None
    controls = ", ".join(
        f"{other['90 %']:g} with {kind} {'patches' if model.startswith('dino') else 'tokens'}"
        for kind in ("shuffled", "random")
        if (other := _row(tables, model, "centred", kind))
    )
    yield judged_along(
        f"{model}: the row-centred scores of one input are low-dimensional",
        "in all five models",
        {f"{percent(s)} of the energy": row[percent(s)] / row["d"] for s in SHARES},
        f"{percent(0.9)} of the energy",
        (row["low"] / row["d"], row["high"] / row["d"]),
        f"holds where the median head needs at most {percent(FEW)} of its {row['d']} components",
        f"share of the components, {row['number']} inputs of {row['tokens']} tokens; interval: 10"
        f" to 90 % of heads; {row['90 %']:g} components at 90 %, {controls}",
        at_most=FEW,
        reason=f"the claim: in this model an input of {row['tokens']} tokens needs"
        f" {row['50 %']:g} components already for half of the energy",
    )
    if weights is None:
        return
    curve = {f"{percent(s)} of the energy": row[percent(s)] / weights[percent(s)] for s in SHARES}
    yield judged_along(
        f"{model}: its weights are not: one input needs a fraction of what W_QᵀW_K needs",
        "2–11 against 38–75",
        curve,
        f"{percent(0.9)} of the energy",
        None,
        f"holds where the ratio is at most {RATIO:.2f}, the largest of the published ranges",
        f"median head's components in one input over those of the weights; at 90 %"
        f" {row['90 %']:g} against {weights['90 %']:g} of {weights['d']}",
        at_most=RATIO,
        reason=f"the claim: at half of the energy the ratio is {curve['50 % of the energy']:.2f}",
    )


def _growth(rows: Sequence[dict[str, Any]]) -> Claim:
    """The statement at every length."""
    real = [row for row in rows if row["inputs"] == "real"]
    last = real[-1]
    ends = [
        f"{kind} {some[0]['90 %']:g} to {some[-1]['90 %']:g}"
        for kind in ("shuffled", "random")
        if (some := [row for row in rows if row["inputs"] == kind])
    ]
    return judged_along(
        f"{last['model']}: they stay low-dimensional as inputs grow",
        "stated without a length",
        {f"{row['tokens']:,} tokens": row["90 %"] / row["d"] for row in real},
        f"{last['tokens']:,} tokens",
        (last["low"] / last["d"], last["high"] / last["d"]),
        f"holds where the median head needs at most {percent(FEW)} of its {last['d']} components"
        " for 90 % of the energy",
        f"share of the components, {last['number']} inputs and their first tokens; interval: 10 to"
        f" 90 % of heads; from {real[0]['90 %']:g} to {last['90 %']:g} components"
        + (f" ({', '.join(ends)})" if ends else ""),
        at_most=FEW,
        reason=f"the claim: {real[0]['tokens']} tokens already need {real[0]['90 %']:g} components",
    )


def _row(tables: Tables, model: str, what: str, kind: str = "real") -> dict[str, Any] | None:
    wanted = {"model": model, "of": IN_WORDS[what], "inputs": "none" if what == "weights" else kind}
    return next((r for r in tables["spectra"] if all(r[k] == x for k, x in wanted.items())), None)
