"""What the spectra, the toy and the trained models say of the published claims."""

from __future__ import annotations

from typing import Any

from ...display import percent
from ..claims import Claim, Tables
from ..verdicts import judged, judged_if, out_of_reach

DISTANCE = {0.0: 1.5, 0.06: 1.8, 0.25: 3.7, 1.0: 8.1}
ENTROPY = {0.0: 0.28, 0.06: 0.34, 0.25: 0.56, 1.0: 0.79}
"""Published numbers of AR(1) tokens with tr W = 16, by the variance of the eigenvalues."""
STRENGTH = 0.01
"""The penalty that the language model is judged at."""


def claims_of(tables: Tables, _quick: bool) -> tuple[Claim, ...]:
    toy = {(row["trace"], row["variance"]): row for row in tables["toy"]}
    rows = [toy[16.0, variance] for variance in DISTANCE]
    rises = min(b["distance"] - a["distance"] for a, b in zip(rows, rows[1:]))
    drifts = [row["drift"] for row in tables["descent"]]
    trace = max(row["gradient's trace"] for row in tables["descent"])
    distances = _describe(rows, "distance")
    return (
        judged(
            "toy: the smaller the variance, the nearer attention looks",
            "1.5/1.8/3.7/8.1",
            rises,
            None,
            "reproduced if above 0",
            f"least rise of the mean distance from one to the next, of {distances}",
            at_least=1e-9,
            reason=f"the claim: the mean distances are {distances}",
        ),
        _figures(
            "toy: mean distance at tr W = 16, variance 0/.06/.25/1",
            rows,
            "distance",
            DISTANCE,
            0.1,
            relative=True,
        ),
        _figures(
            "toy: entropy of the mean profile", rows, "entropy", ENTROPY, 0.05, relative=False
        ),
        _without_trace([toy[0.0, variance] for variance in DISTANCE]),
        judged(
            "the penalty's gradient has no trace",
            "traceless",
            trace,
            None,
            "reproduced if at most 1e-5",
            "largest |tr ∇| over ‖∇‖ in float32",
            at_most=1e-5,
            reason=f"the claim: its trace is {trace:.1e} of its norm",
        ),
        judged(
            "penalty-only descent in W keeps the trace",
            "drift < 1e-5",
            max(drifts),
            (min(drifts), max(drifts)),
            "reproduced if below 1e-5",
            "drift of tr W over 100 steps, which leave"
            f" {max(row['penalty left'] for row in tables['descent']):.1e} of the penalty;"
            " interval: seeds",
            at_most=1e-5,
            reason=f"the claim: the trace drifts by {max(drifts):.1e}",
        ),
        *_heads(tables),
        *_training(tables),
    )


def _describe(rows: list[dict[str, Any]], key: str) -> str:
    return "/".join(f"{row[key]:.2f}" for row in rows)


def _figures(
    claim: str,
    rows: list[dict[str, Any]],
    key: str,
    published: dict[float, float],
    limit: float,
    relative: bool,
) -> Claim:
    gaps = [
        abs(row[key] - published[row["variance"]]) / (published[row["variance"]] if relative else 1)
        for row in rows
    ]
    worst = rows[gaps.index(max(gaps))]
    unit = f"{percent(limit)}" if relative else f"{limit:g}"
    off = f"{percent(max(gaps))}" if relative else f"{max(gaps):.2f}"
    return judged_if(
        max(gaps) <= limit,
        claim,
        "/".join(f"{value:g}" for value in published.values()),
        worst[key],
        (worst[f"{key} low"], worst[f"{key} high"]),
        f"reproduced if at most {unit} off at every variance",
        f"at variance {worst['variance']:g}, where it is farthest, of {_describe(rows, key)};"
        " interval: seeds",
        reason=f"the claim: at variance {worst['variance']:g} it is {off} off",
    )


def _without_trace(rows: list[dict[str, Any]]) -> Claim:
    low, high = min(row["distance"] for row in rows), max(row["distance"] for row in rows)
    found = _describe(rows, "distance")
    return judged_if(
        low >= 14 and high <= 17,
        "toy: without a trace attention does not localise",
        "14.7 – 16.1",
        (low + high) / 2,
        (low, high),
        "reproduced if all lie in 14 – 17",
        f"mean distances, means over seeds: {found}; interval: over variances",
        reason=f"the claim: the mean distances are {found}",
    )


def _heads(tables: Tables) -> list[Claim]:
    """Heads of loaded models: a concentrated spectrum, a short distance."""
    found = []
    for row in tables["correlations"]:
        if (row["spectrum"], row["of"]) != ("concentration", "distance"):
            continue
        others = {
            r["spectrum"]: r["value"]
            for r in tables["correlations"]
            if r["model"] == row["model"] and r["of"] == "distance"
        }
        heads = sum(r["model"] == row["model"] for r in tables["heads"])
        found.append(
            judged_if(
                row["high"] < 0,
                f"{row['model']}: heads with a concentrated spectrum look nearer",
                "a mean off 0 and a small variance localise",
                row["value"],
                (row["low"], row["high"]),
                "reproduced if the interval lies below 0",
                "rank correlation of |mean| over standard deviation of a head's eigenvalues with"
                f" its mean distance; with the mean alone {others['mean']:.2f}, with the variance"
                f" alone {others['variance']:.2f}; interval: 95 % of resampled heads",
                reason=_why_not(row, heads),
            )
        )
    return found


def _why_not(row: dict[str, Any], heads: int) -> str:
    """An interval that includes 0 tells nothing; one above it tells against the claim."""
    found = f"the correlation is {row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
    if row["low"] > 0:
        return f"the claim: over {heads} trained heads {found}"
    return f"the scale: {heads} heads do not tell, {found}"


def _training(tables: Tables) -> list[Claim]:
    """Each seed with the penalty against the same seed without: miniatures of the paper's models.

    The paper's own penalty and its language models are not here.
    """
    runs = {(run["penalty"], run["seed"]): run for run in tables["runs"]}
    seeds = [seed for penalty, seed in runs if penalty == STRENGTH]
    found = []
    for key, claim, published in (
        (
            "perplexity",
            "the penalty lowers the perplexity of a language model",
            "lower with LocAteR",
        ),
        (
            "entropy",
            "the penalty keeps attention from entropy collapse",
            "avoids it: the entropy stays higher",
        ),
    ):
        ratios = [runs[STRENGTH, seed][key] / runs[0.0, seed][key] for seed in seeds]
        message = ", ".join(f"{row['penalty']:g}: {row[key]:.3f}" for row in tables["training"])
        found.append(
            out_of_reach(
                claim,
                published,
                "the paper's language models and its own equation of the penalty",
                f"models of bytes: ratio to none at strength {STRENGTH:g}; {key} by strength"
                f" {message}; interval: seeds",
                measured=sum(ratios) / len(ratios),
                interval=(min(ratios), max(ratios)),
            )
        )
    return found
