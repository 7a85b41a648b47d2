"""What the measurements say of the hybrid paper's claims, and of the demonstration's figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims import Claim, Tables
from ..fits import power_law_exponent
from ..verdicts import judged, judged_at, judged_if, out_of_reach

LEFT = {32: 0.502, 64: 0.752, 128: 0.875}
"""The share of N Gaussian pairs that the best state of width 16 leaves."""
FIRST = 0.415
"""Right answers of the best linear state at N = 8, L = 1."""
FAR = 64
"""From so many values on the best linear state is right about one time in N."""
ABOUT = (2.0, 3.0, 4.0)
"""What "about" can mean: at most so many times 1/N."""
RULES = ("delta", "gated-linear", "gated-delta")


def claims_of(tables: Tables, quick: bool) -> tuple[Claim, ...]:
    """The verdicts; those that rest on time or on training are not for the quick run."""
    composed, held = _composition(tables["composition"]), _capacity(tables["capacity"])
    return (*composed, *held, *_chunks(tables, quick), _training(tables))


def _composition(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    exact = [row["accuracy"] for row in rows if row["linear"] == 0]
    numbers, deep = sorted({row["values"] for row in rows}), max(row["functions"] for row in rows)
    short = {(row["values"], row["functions"]): row for row in rows if row["linear"] == 1}
    one = short[numbers[-1], deep]
    message = ", ".join(f"N={N} {short[N, deep]['accuracy']:.3f}" for N in numbers)
    found = [
        judged(
            "L + 1 full layers compose L functions",
            "solvable for every N",
            min(exact),
            (min(exact), max(exact)),
            "reproduced if every answer is right",
            "share of right answers of the construction, the least over N ="
            f" {', '.join(map(str, numbers))} and L = 1 … {deep}; interval: least and largest",
            at_least=1.0,
            reason=f"the claim: our construction gives {min(exact):.3f} right answers",
        ),
        out_of_reach(
            "L − 1 full layers and linear ones, however many, cannot",
            "impossible for large N",
            "a proof: it is a statement about all weights",
            f"one of {deep} look-ups by the best linear state for its table, the others by"
            f" attention, right answers: {message}; interval: least and largest seed",
            measured=one["accuracy"],
            interval=(one["low"], one["high"]),
        ),
    ]
    state = {(row["values"], row["functions"]): row for row in rows if row["full"] == 0}
    found.append(
        _near(
            "best linear state, N = 8, L = 1",
            FIRST,
            state[8, 1]["accuracy"],
            state[8, 1],
            0.03,
            "share of right answers, mean of seeds",
        )
    )
    return [*found, *(_far(state, numbers, L) for L in range(1, deep + 1))]


def _far(state: dict[tuple[int, int], dict[str, Any]], numbers: Sequence[int], L: int) -> Claim:
    """About one time in N: judged for several factors that "about" can stand for."""
    far = {N: N * state[N, L]["accuracy"] for N in numbers if N >= FAR}
    worst = max(far, key=lambda N: far[N])
    message = ", ".join(f"N={N} {times:.2f}" for N, times in far.items())
    points = {f"a factor of {factor:g}": far[worst] <= factor for factor in ABOUT}
    return judged_at(
        f"best linear state, L = {L}: right about one time in N from N = {FAR}",
        "about 1/N",
        far[worst],
        points,
        (worst * state[worst, L]["low"], worst * state[worst, L]["high"]),
        "holds at a factor if the share of right answers is at most so many times 1/N",
        f"N times the share, the largest of {message}; interval: least and largest seed",
        reason=f"the claim: at N = {worst} the best linear state is right {far[worst]:.2f} times"
        " in N",
    )


def _capacity(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    best = {row["pairs"]: row for row in rows if row["mechanism"] == "best state"}
    found = [
        _near(
            f"best state of width 16 for {N} Gaussian pairs",
            value,
            best[N]["left"],
            best[N],
            0.01,
            f"share of the values left, mean of draws; 1 − d_k/N is {best[N]['theory']:.4f}",
        )
        for N, value in LEFT.items()
    ]
    hot = [row["high"] for row in rows if row["mechanism"] == "softmax"]
    found.append(
        judged(
            "hot softmax holds every pair",
            "0",
            max(hot),
            (min(hot), max(hot)),
            "reproduced if at most 1e-12",
            "share of the values left, the largest over all N and draws",
            at_most=1e-12,
            reason=f"the claim: {max(hot):.1e} of the values is left",
        )
    )
    return found


def _chunks(tables: Tables, quick: bool) -> list[Claim]:
    rows = tables["equality"]
    outputs, slopes = ([row[key] for row in rows] for key in ("outputs", "gradients"))
    found = [
        judged(
            f"chunks of tokens give the recurrence: {name}",
            "≤ 1e-5 in single precision",
            max(errors),
            (min(errors), max(errors)),
            "reproduced if at most 1e-5",
            f"largest difference over {', '.join(RULES)}, chunk sizes and seeds",
            at_most=1e-5,
            reason=f"the claim: our chunks and the recurrence are {max(errors):.1e} apart",
        )
        for name, errors in (("outputs", outputs), ("gradients, over the largest", slopes))
    ]
    return [*found, _linear(tables["speed"], quick)]


def _linear(times: Sequence[dict[str, Any]], quick: bool) -> Claim:
    long = 2048
    powers = {
        name: power_law_exponent(
            [row for row in times if row["form"] == name and row["tokens"] >= long],
            "tokens",
            "milliseconds",
        )
        for name in (*RULES, "linear", "softmax")
    }
    message = ", ".join(f"{name} {power:.2f}" for name, power in powers.items())
    worst = max(powers[name] for name in RULES)
    spread = (min(powers[name] for name in RULES), worst)
    loops = {row["form"]: row for row in times if row["form"].endswith("loop")}
    by_form = {(row["form"], row["tokens"]): row["milliseconds"] for row in times}
    faster = ", ".join(
        f"{name} {by_form[f'{name}, loop', n] / by_form[name, n]:.0f}"
        for name, n in ((name, loops[f"{name}, loop"]["tokens"]) for name in RULES)
    )
    claim, published = "the chunked form is linear in length", "linear"
    note = (
        f"power of the length that processor time grows with, from {long} tokens on, the largest of"
        f" the recurrences: {message}; interval: least and largest of them; times as fast as the"
        f" loop over {loops['delta, loop']['tokens']} tokens: {faster}"
    )
    if quick:
        missing = "more lengths and rounds than a quick run times"
        return out_of_reach(claim, published, missing, note, measured=worst, interval=spread)
    return judged(
        *(claim, published, worst, spread, "reproduced if at most 1.15", note),
        at_most=1.15,
        reason=f"the claim: processor time grows with the power {worst:.2f} of the length",
    )


def _training(tables: Tables) -> Claim:
    rows = {row["pattern"]: row for row in tables["trained"]}
    full, linear = (
        next(row for name, row in rows.items() if set(name) == {letter}) for letter in "FD"
    )
    message = ", ".join(
        f"{name} {row['accuracy']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        for name, row in rows.items()
    )
    note = (
        f"a miniature: {full['steps']} steps, L = {full['functions']}, N ="
        f" {round(1 / full['chance'])}, every answer on the way asked for; right last answers by"
        f" pattern: {message}; measured: {full['pattern']} over {linear['pattern']}; interval: from"
        " the least seed of the one over the largest of the other to the reverse; a state of this"
        " width could hold so few pairs"
    )
    return out_of_reach(
        "trained from scratch, full layers compose and as many linear ones do not",
        "follows from the hierarchy",
        "a proof: what so short a training does not learn is none",
        note,
        measured=full["accuracy"] - linear["accuracy"],
        interval=(full["low"] - linear["high"], full["high"] - linear["low"]),
    )


def _near(
    claim: str, published: float, measured: float, row: dict[str, Any], apart: float, what: str
) -> Claim:
    off = abs(measured - published)
    return judged_if(
        off <= apart,
        claim,
        str(published),
        measured,
        (row["low"], row["high"]),
        f"reproduced if at most {apart} apart",
        f"{what}; interval: least and largest",
        reason=f"the claim: what is measured lies {off:.3f} from it",
    )
