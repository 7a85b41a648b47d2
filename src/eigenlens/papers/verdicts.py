"""How a verdict follows from what was measured: a bound, a curve, our seeds, or nothing at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean

from ..display import numbered
from ..errors import EigenlensError
from .claims import Claim, Verdict

Interval = tuple[float, float] | None


def judged(
    claim: str,
    published: str,
    measured: float,
    interval: Interval,
    criterion: str,
    note: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    reason: str = "",
) -> Claim:
    """A claim whose verdict follows from a bound on what was measured; NaN meets no bound.

    `reason` is kept if the claim is not reproduced.
    """
    holds = _holds(measured, at_most, at_least)
    return judged_if(holds, claim, published, measured, interval, criterion, note, reason=reason)


def judged_along(
    claim: str,
    published: str,
    curve: Mapping[str, float],
    main: str,
    interval: Interval,
    criterion: str,
    note: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    reason: str = "",
) -> Claim:
    """A claim that was stated without a figure, judged at every point of a curve.

    `curve` has what was measured at each threshold, in words such as "90 % of the variance"; `main`
    is the one that `measured` shows. All points within the bound: reproduced; none: not reproduced;
    some: it depends, and the note begins with where it holds and where it does not.

    >>> points = {"half of the variance": 0.08, "90 %": 0.58}
    >>> one = judged_along("it is low-dimensional", "stated", points, "90 %", None,
    ...     "holds where the share of n is at most 25 %", "median head", at_most=0.25)
    >>> one.verdict, one.note
    ('depends', 'holds at half of the variance (0.08), not at 90 % (0.58); median head')
    """
    points = {
        f"{words} ({value:.3g})": _holds(value, at_most, at_least) for words, value in curve.items()
    }
    measured = curve[main]
    return judged_at(claim, published, measured, points, interval, criterion, note, reason=reason)


def judged_at(
    claim: str,
    published: str,
    measured: float | None,
    points: Mapping[str, bool],
    interval: Interval,
    criterion: str,
    note: str,
    *,
    reason: str = "",
) -> Claim:
    """A claim without a figure, and for each way to read it whether it holds.

    All hold: reproduced; none: not reproduced; some: it depends. The note begins with which.

    >>> near = {"|λ₁| is 3 times |λ₂|": True, "it is 10 times |λ₂|": False}
    >>> one = judged_at("S is near rank one", "stated", 4.8, near, None, "holds where …", "")
    >>> one.verdict, one.note
    ('depends', 'holds at |λ₁| is 3 times |λ₂|, not at it is 10 times |λ₂|')
    """
    good, bad = ([words for words, holds in points.items() if holds == sign] for sign in (1, 0))
    said = [
        f"{verb} at {', '.join(places)}"
        for places, verb in ((good, "holds"), (bad, "not" if good else "fails"))
        if places
    ]
    note = "; ".join([", ".join(said), *([note] if note else [])])
    made = judged_if(
        bool(good), claim, published, measured, interval, criterion, note, reason=reason
    )
    return replace(made, verdict="depends") if good and bad else made


def judged_by_seeds(
    claim: str,
    published: float,
    seeds: Sequence[float],
    note: str,
    *,
    reason: str = "",
    words: str = "",
) -> Claim:
    """A claim of which one random start was published: the range over our seeds judges it.

    `measured` is the mean over `seeds`, the interval their range. `words` replaces the bare figure
    in what was published.
    """
    low, high = min(seeds), max(seeds)
    criterion = (
        "one random start was published: reproduced if it lies between the least and the largest"
        f" of our {numbered(len(seeds), 'seed')}"
    )
    holds = low <= published <= high
    stated = words or f"{published:g}"
    return judged_if(holds, claim, stated, mean(seeds), (low, high), criterion, note, reason=reason)


def judged_if(
    holds: bool,
    claim: str,
    published: str,
    measured: float | None,
    interval: Interval,
    criterion: str,
    note: str,
    *,
    reason: str = "",
) -> Claim:
    """A claim whose criterion is more than one bound, such as a range or two bounds together.

    `reason` is kept if the claim is not reproduced.
    """
    verdict: Verdict = "reproduced" if holds else "not reproduced"
    kept = "" if holds else reason
    return Claim(claim, published, measured, interval, criterion, verdict, note, kept)


def out_of_reach(
    claim: str,
    published: str,
    missing: str,
    note: str = "",
    *,
    measured: float | None = None,
    interval: Interval = None,
) -> Claim:
    """A claim about a scale, a task or a model that is not here, with our miniature beside it.

    `missing` says what is not here, such as "a model of 7 billion parameters".
    """
    criterion = f"not judged: it needs {missing}"
    return Claim(claim, published, measured, interval, criterion, "out of reach", note)


def _holds(value: float, at_most: float | None, at_least: float | None) -> bool:
    if (at_most is None) == (at_least is None):
        raise EigenlensError("give either at_most or at_least: a verdict rests on one bound")
    return value <= at_most if at_most is not None else value >= (at_least or 0.0)
