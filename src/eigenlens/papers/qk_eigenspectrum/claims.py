"""What the spectra, the toy and the trained models say of the published claims."""

from __future__ import annotations

from typing import Any

from ...display import percent
from ..claims import Claim, Tables, Verdict
from ..verdicts import judged

DISTANCE = {0.0: 1.5, 0.06: 1.8, 0.25: 3.7, 1.0: 8.1}
ENTROPY = {0.0: 0.28, 0.06: 0.34, 0.25: 0.56, 1.0: 0.79}
"""Published numbers of AR(1) tokens with tr W = 16, by the variance of the eigenvalues."""
STRENGTH = 0.01
"""The penalty that the language model is judged at."""


def claims_of(tables: Tables, _quick: bool) -> tuple[Claim, ...]:
    toy = {(row["trace"], row["variance"]): row for row in tables["toy"]}
    rows = [toy[16.0, variance] for variance in DISTANCE]
    rises = min(b["distance"] - a["distance"] for a, b in zip(rows, rows[1:]))
    spread = [toy[0.0, variance] for variance in DISTANCE]
    drift = max(row["drift"] for row in tables["descent"])
    return (
        judged(
            "toy: the smaller the variance, the nearer attention looks",
            "1.5/1.8/3.7/8.1",
            rises,
            None,
            "least rise of the mean distance from one to the next, of"
            f" {_describe(rows, 'distance')}; reproduced if above 0",
            at_least=1e-9,
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
        _within(spread),
        judged(
            "the penalty's gradient has no trace",
            "traceless",
            max(row["gradient's trace"] for row in tables["descent"]),
            None,
            "largest |tr ∇| over ‖∇‖ in float32; reproduced if at most 1e-5",
            at_most=1e-5,
        ),
        judged(
            "penalty-only descent in W keeps the trace",
            "drift < 1e-5",
            drift,
            (min(row["drift"] for row in tables["descent"]), drift),
            "drift of tr W over 100 steps, which leave"
            f" {max(row['penalty left'] for row in tables['descent']):.1e} of the penalty;"
            " interval: seeds; reproduced if below 1e-5",
            at_most=1e-5,
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
    verdict: Verdict = "reproduced" if max(gaps) <= limit else "not reproduced"
    unit = f"{percent(limit)}" if relative else f"{limit:g}"
    note = (
        f"at variance {worst['variance']:g}, where it is farthest, of {_describe(rows, key)};"
        f" interval: seeds; reproduced if at most {unit} off at every variance"
    )
    interval = (worst[f"{key} low"], worst[f"{key} high"])
    return Claim(
        claim,
        "/".join(f"{value:g}" for value in published.values()),
        worst[key],
        interval,
        verdict,
        note,
    )


def _within(rows: list[dict[str, Any]]) -> Claim:
    low, high = min(row["distance"] for row in rows), max(row["distance"] for row in rows)
    verdict: Verdict = "reproduced" if low >= 14 and high <= 17 else "not reproduced"
    note = (
        f"means over seeds: {_describe(rows, 'distance')}; interval: over variances; reproduced if"
        " all lie in 14 – 17"
    )
    return Claim(
        "toy: without a trace attention does not localise",
        "14.7 – 16.1",
        (low + high) / 2,
        (low, high),
        verdict,
        note,
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
        verdict: Verdict = "reproduced" if row["high"] < 0 else "not reproduced"
        note = (
            "rank correlation of |mean| over standard deviation of a head's eigenvalues with its"
            f" mean distance; with the mean alone {others['mean']:.2f}, with the variance alone"
            f" {others['variance']:.2f}; interval: 95 % of resampled heads; reproduced if it lies"
            " below 0"
        )
        name = f"{row['model']}: heads with a concentrated spectrum look nearer"
        found.append(
            Claim(
                name,
                "a mean off 0 and a small variance localise",
                row["value"],
                (row["low"], row["high"]),
                verdict,
                note,
            )
        )
    return found


def _training(tables: Tables) -> list[Claim]:
    """Each seed with the penalty against the same seed without."""
    runs = {(run["penalty"], run["seed"]): run for run in tables["runs"]}
    seeds = [seed for penalty, seed in runs if penalty == STRENGTH]
    found = []
    for key, claim, published, below in (
        (
            "perplexity",
            "the penalty lowers the perplexity of a small language model",
            "lower with LocAteR",
            True,
        ),
        (
            "entropy",
            "the penalty keeps attention from entropy collapse",
            "avoids it: the entropy stays higher",
            False,
        ),
    ):
        ratios = [runs[STRENGTH, seed][key] / runs[0.0, seed][key] for seed in seeds]
        mean = sum(ratios) / len(ratios)
        message = ", ".join(f"{row['penalty']:g}: {row[key]:.3f}" for row in tables["training"])
        note = (
            f"ratio to none at strength {STRENGTH:g}; {key} by strength {message}; interval: seeds;"
            " reproduced if "
        )
        bounds = (min(ratios), max(ratios))
        holds = bounds[1] < 1 if below else bounds[0] > 1
        verdict: Verdict = "reproduced" if holds else "not reproduced"
        note += "below 1 for every seed" if below else "above 1 for every seed"
        found.append(Claim(claim, published, mean, bounds, verdict, note))
    return found
