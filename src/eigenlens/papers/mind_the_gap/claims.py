"""What the spectra, ranks and gradients say of the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ...display import numbered
from ..claims import Claim, Tables
from ..fits import power_law_exponent
from ..verdicts import judged, judged_at, judged_if
from .models import MODELS, VARIANTS

SEEDS = "mean of {} seeds, interval: least and largest"
RISES = (1.0, 1.1)
"""What "higher" can mean of a rank: more than so many times."""


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    """Every claim; those about the spectrum are judged at 400 tokens, or at the most below that."""
    return (
        *_spectrum(tables),
        *_width(tables),
        *_depth(tables),
        *_gradients(tables),
        *_encoder(tables),
    )


def _spectrum(tables: Tables) -> tuple[Claim, ...]:
    runs = tables["spectrum runs"]
    T = _at(rows_with(runs, model="Markov"), 400)["T"]
    rows = rows_with(runs, model="Markov", T=T)
    (s1, s1_range), (s2, s2_range), (second, second_range) = (
        _mean(r[key] for r in rows) for key in ("s1", "s2·√T", "λ2·√T")
    )
    where = f"Markov model, {T} tokens; {SEEDS.format(len(rows))}"
    key_query = [
        {**r, "s2": r["s2·√T"] / math.sqrt(r["T"])} for r in rows_with(runs, model="key-query")
    ]
    fall, fall_range = _slopes(key_query, "s2")
    return (
        judged(
            "one singular value is an outlier near 1",
            "s₁ → 1",
            s1,
            s1_range,
            "reproduced if at most 1.01 (a matrix whose rows sum to 1 has none below 1)",
            where,
            at_most=1.01,
            reason=f"the scale: with {T} tokens it is {s1:.4f}",
        ),
        judged_if(
            1.9 <= s2 <= 2.3,
            "the bulk of singular values has radius 2σT^(−1/2)",
            "s₂√T → 2",
            s2,
            s2_range,
            "reproduced if within 1.9 and 2.3",
            where,
            reason=f"the scale: with {T} tokens s₂√T is {s2:.3f}",
        ),
        judged_if(
            abs(second - 1) <= 0.1,
            "the bulk of eigenvalues has radius σT^(−1/2)",
            "|λ₂|√T → 1",
            second,
            second_range,
            "reproduced if within 0.9 and 1.1",
            where,
            reason=f"the scale: with {T} tokens |λ₂|√T is {second:.3f}",
        ),
        judged_if(
            abs(fall + 0.5) <= 0.1,
            "key-query attention has the same scaling",
            "s₂ = O(T^(−1/2))",
            fall,
            fall_range,
            "reproduced if within 0.1 of −1/2; the constant is not judged",
            f"exponent of s₂ in T from {key_query[0]['T']} to {key_query[-1]['T']} tokens;"
            f" {SEEDS.format(len(rows))}",
            reason=(
                f"the scale: from {key_query[0]['T']} to {key_query[-1]['T']} tokens the exponent"
                f" is {fall:.3f}"
            ),
        ),
    )


def _width(tables: Tables) -> tuple[Claim, ...]:
    made = []
    for model in MODELS:
        before, after = (
            rows_with(tables["width"], model=model, variant=name) for name in ("A", "A⊥")
        )
        row, other = _at(before, 400), _at(after, 400)
        excess = power_law_exponent(
            [{"T": r["T"], "excess": r["stable rank"] - 1} for r in before], "T", "excess"
        )
        growth = power_law_exponent(after, "T", "stable rank")
        message = f"{model} model; {SEEDS.format(row['seeds'])}"
        made += [
            judged_if(
                row["stable rank"] <= 1.1 and excess < 0,
                f"{model}: after one layer the tokens are nearly of rank one",
                "stable rank → 1 as T grows",
                row["stable rank"],
                (row["low"], row["high"]),
                "reproduced if at most 1.1 and the excess over 1 falls with T",
                f"{message}; {row['T']} tokens; the excess over 1 goes as T^{excess:.2f}",
                reason=(
                    f"the scale: with {row['T']} tokens the stable rank is"
                    f" {row['stable rank']:.3f}, its excess over 1 goes as T^{excess:.2f}"
                ),
            ),
            judged_if(
                other["stable rank"] >= 10 and growth > 0,
                f"{model}: without the outlier they are not",
                "stable rank grows with T",
                other["stable rank"],
                (other["low"], other["high"]),
                "reproduced if at least 10 and growing with T",
                f"{message}; {other['T']} tokens; grows as T^{growth:.2f}",
                reason=(
                    f"the scale: with {other['T']} tokens the stable rank is"
                    f" {other['stable rank']:.2f}, and it goes as T^{growth:.2f}"
                ),
            ),
        ]
    return tuple(made)


def _depth(tables: Tables) -> tuple[Claim, ...]:
    """Variants are compared in pairs, with the outlier and without: each is a way to read it."""
    made = []
    for model in MODELS:
        shares, message, first = {}, [], []
        for kept, removed in zip(VARIANTS[::2], VARIANTS[1::2]):
            before, after = (
                rows_with(tables["depth"], model=model, variant=v.name) for v in (kept, removed)
            )
            higher = [a["stable rank"] > b["stable rank"] for a, b in zip(after, before)]
            shares[kept.name] = sum(higher) / len(higher)
            first.append(higher[0])
            message.append(
                f"{kept.name} {before[-1]['stable rank']:.2f} and {removed.name}"
                f" {after[-1]['stable rank']:.2f}"
            )
        share = sum(shares.values()) / len(shares)
        made.append(
            judged_at(
                f"{model}: removing the outlier keeps a higher rank along depth",
                "higher at every depth",
                share,
                {f"{name} ({found:.2f})": found == 1 for name, found in shares.items()},
                None,
                "holds for a kind of layer if A⊥ has the higher stable rank at every depth",
                "share of depths at which it has (mean of seeds); after the last layer"
                f" {'; '.join(message)}",
                reason=_isotropy(model, first, f"along depth in {share:.0%} of the cases"),
            )
        )
    return tuple(made)


def _isotropy(model: str, first: Sequence[bool], then: str) -> str:
    """Why a claim about deep layers can fail in a model that is defined for isometric tokens."""
    if model == "Markov":
        return f"the claim: A⊥ has the higher rank {then}"
    return (
        "the protocol: the key-query model is stated for isometric tokens, as before the first"
        f" layer alone; behind that A⊥ has the higher rank in {sum(first)} of {len(first)} kinds of"
        f" layers, {then}"
    )


def _gradients(tables: Tables) -> tuple[Claim, ...]:
    made, L = [], tables["gradient runs"][0]["layers"]
    for model in MODELS:
        runs = {
            v.name: rows_with(tables["gradient runs"], model=model, variant=v.name)
            for v in VARIANTS
        }
        before, after = (_by_seed(runs[name], "norm") for name in ("A", "A⊥"))
        fall, fall_range = _mean(a - b for a, b in zip(before, after))
        exponents = {name: _slopes(found, "norm")[0] for name, found in runs.items()}
        message = ", ".join(f"{name}: {found:.2f}" for name, found in exponents.items())
        both = f"the exponent is {exponents['A']:.2f} with A and {exponents['A⊥']:.2f} with A⊥"
        why = (
            f"the claim: {both}"
            if model == "Markov"
            else "the protocol: the growth is derived for attention that does not depend on the"
            f" tokens, here gradients go through the scores as well; {both}"
        )
        made.append(
            judged(
                f"{model}: removing the outlier tames the growth of gradients with T",
                "the gap makes gradients explode",
                fall,
                fall_range,
                "reproduced if by half of what long inputs of the Markov model give, from"
                f" {L / 2:g} to 0.5: {(L - 1) / 4:g}",
                f"how much the exponent of ‖∂X_L/∂W_1‖ in T falls, {L} layers;"
                f" {SEEDS.format(len(before))}; {message}",
                at_least=(L - 1) / 4,
                reason=why,
            )
        )
    return tuple(made)


def _encoder(tables: Tables) -> tuple[Claim, ...]:
    """The claim about whole encoders at their random start; a trained one is only reported."""
    rows = tables["encoder"]
    last = max(row["depth"] for row in rows)
    ends = {
        attention: [
            row["stable rank"]
            for row in rows_with(rows, weights="random start", attention=attention, depth=last)
        ]
        for attention in ("softmax", "spectral-gap-removal")
    }
    ratios = [
        after / before for before, after in zip(ends["softmax"], ends["spectral-gap-removal"])
    ]
    ratio = sum(ratios) / len(ratios)
    trained = [
        rows_with(rows, weights="trained", attention=name, depth=last)[0]["stable rank"]
        for name in ("softmax", "spectral-gap-removal")
    ]
    left = [
        row["left of patterns"] for row in rows_with(tables["embeddings"], weights="random start")
    ]
    return (
        judged_at(
            "a whole encoder at its random start keeps a higher rank without the outlier",
            "for attention layers: higher",
            ratio,
            {
                "any rise" if rise == 1 else f"a rise by {rise - 1:.0%}": min(ratios) > rise
                for rise in RISES
            },
            (min(ratios), max(ratios)),
            "holds at a rise if every random start has it",
            "stable rank after the last layer over that with softmax;"
            f" {numbered(len(ratios), 'random start')}, interval: least and largest of them;"
            f" trained, without further training: {trained[0]:.2f} before, {trained[1]:.2f} after",
            reason=(
                f"the protocol: at this random start A⊥ has {max(left):.1%} of the squared norm of"
                " A, so that skips and MLPs carry the stream"
            ),
        ),
    )


def _mean(values: Iterable[float]) -> tuple[float, tuple[float, float]]:
    """The mean, and the least and largest."""
    found = list(values)
    return sum(found) / len(found), (min(found), max(found))


def _by_seed(runs: Sequence[dict[str, Any]], y: str) -> list[float]:
    """The exponent of y in T of each seed."""
    return [
        power_law_exponent(rows_with(runs, seed=seed), "T", y)
        for seed in dict.fromkeys(run["seed"] for run in runs)
    ]


def _slopes(runs: Sequence[dict[str, Any]], y: str) -> tuple[float, tuple[float, float]]:
    return _mean(_by_seed(runs, y))


def rows_with(rows: Sequence[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _at(rows: Sequence[dict[str, Any]], T: int) -> dict[str, Any]:
    """The row of T tokens, or of the most below."""
    return [row for row in rows if row["T"] <= T][-1]
