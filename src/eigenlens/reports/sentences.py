"""The sentences of the page, each made from the numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..captures import Head, Labels, Site, location_of
from ..collapses.bounds import LARGEST_D
from ..collapses.result import Collapse
from ..display import numbered
from ..plans.result import Plan

PAPER = "rows-lmmse"
"""The name of the estimator of the eigen-analysis paper."""


def percent(value: float) -> str:
    """A share as a rounded percentage: `14 %`, `less than 0.01 %`."""
    if not value:
        return "0 %"
    if abs(value) < 1e-4:
        return "less than 0.01 %"
    digits = 0 if abs(value) >= 0.0995 else 1 if abs(value) >= 5e-3 else 2
    return f"{100 * value:.{digits}f} %".replace("-", "−")


def curve_sentence(plan: Plan) -> str:
    """Say which estimator would be best if all heads used it, beside the paper's own."""
    rows = [row for row in plan.curve if row["budget"] is not None]
    if not rows:
        return ""
    target = plan.target.get("budget") or plan.work
    best, paper = (
        _best(rows, target),
        _best([row for row in rows if row["estimator"] == PAPER], target),
    )
    if best is None:
        return ""
    text = (
        f"If all heads used one estimator, {best['estimator']} would be best for"
        f" {percent(target)} of the work: it moves the patterns by {best['total_variation']:.3f} in"
        f" total variation on average, for {percent(best['work'])} of the work"
    )
    if paper is not None and paper is not best:
        more = ", more than exact scores take" if paper["work"] > 1 else ""
        text += (
            f". The estimator of the eigen-analysis paper ({PAPER}) moves them by"
            f" {paper['total_variation']:.3f} for "
        )
        text += f"{percent(paper['work'])}{more}"
    floor = next((row["total_variation"] for row in plan.curve if row["estimator"] == "mean"), None)
    if floor is not None:
        text += f". With the mean of each key position alone they move by {floor:.3f}"
    return text + "."


def _best(rows: Sequence[dict[str, Any]], work: float) -> dict[str, Any] | None:
    """The row that loses least within the work; if none is within it, the cheapest row."""
    within = [row for row in rows if row["work"] <= 1.02 * work]
    if within:
        return min(within, key=lambda row: row["total_variation"])
    return min(rows, key=lambda row: row["work"], default=None)


def paths_sentence(run: Collapse) -> str:
    """Say how much of the output comes over paths of few hops, and what the longest add."""
    key = "mlp_hops" if run.by == "mlp" else "attention_hops"
    kind = "MLP" if run.by == "mlp" else "attention"
    parts = []
    rows = [row for row in run.paths if row["part"] == "paths"]
    for stack in dict.fromkeys(row["stack"] for row in rows):
        by_hops: dict[int, dict[str, float]] = {}
        for row in (r for r in rows if r["stack"] == stack):
            entry = by_hops.setdefault(row[key], {"share": 0.0, "path_share": 0.0})
            entry["share"] += row["share"]
            entry["path_share"] += row["path_share"] if row["path_share"] is not None else math.nan
        longest = max(by_hops)
        few = ", ".join(
            f"{percent(by_hops[hops]['share'])} with {hops}" for hops in sorted(by_hops)[:3]
        )
        others = [row for row in run.paths if row["stack"] == stack and row["part"] != "paths"]
        rest = "".join(
            f"; {percent(row['share'])} comes over no path ({row['part']})"
            for row in others
            if row["share"]
        )
        where = (
            f"The output of the {stack}"
            if len({row["stack"] for row in rows}) > 1
            else "The output"
        )
        share, number = percent(by_hops[longest]["share"]), by_hops[longest]["path_share"]
        are = "" if math.isnan(number) else f"are {percent(number)} of all paths and "
        long = numbered(longest, "hop")
        parts.append(
            f"{where} is a sum over paths, by number of {kind} hops: {few}{rest}. Paths with {long}"
            f" {are}add {share}."
        )
    return " ".join(parts)


def bounds_sentence(run: Collapse) -> str:
    """Say in how many heads the condition of the cubic bound holds, and how far it is missed."""
    known = [row for row in run.bounds if row["max_d"] is not None]
    if not known:
        return (
            "The scores of these heads are no bilinear form of the tokens (X W Xᵀ), so the cubic"
            " bound does not apply to them."
        )
    holds = sum(row["holds"] == 1 for row in known)
    d = [row["max_d"] for row in known]
    return (
        "The cubic bound needs score rows that differ from their mean row by a spread D of at most"
        f" {LARGEST_D}. It holds in {holds} of {len(known)} heads: D is {np.median(d):.3g} in the"
        f" median head and at least {min(d):.3g}."
        f" {_contraction(run.bounds)}"
    )


def _contraction(bounds: Sequence[dict[str, Any]]) -> str:
    found = [row["dobrushin"] for row in bounds if row["dobrushin"] is not None]
    if not found:
        return ""
    strong = sum(value < 0.5 for value in found)
    return (
        "The Dobrushin coefficient, the largest share of a difference between tokens that a"
        f" pattern keeps, is {np.median(found):.2f} in the median head and below 0.5 in"
        f" {strong} of {len(found)} heads."
    )


def layers_sentence(numbers: Sequence[dict[str, Any]]) -> str:
    """Say which layers need fewest and most dimensions, and how much lower the sample looks."""
    what, prefix = _main(numbers)
    labels = Labels(record["stack"] for record in numbers)
    layers: dict[Site, list[float]] = {}
    gaps = []
    for record in numbers:
        found, inside = (
            record.get(f"{prefix}_held_out_dimension_90"),
            record.get(f"{prefix}_dimension_90"),
        )
        if record.get(f"{prefix}_dimensions"):
            site = Site(record["stack"], record["layer"])
            layers.setdefault(site, []).append(np.inf if found is None else found)
        if found is not None and inside is not None:
            gaps.append(found - inside)
    if not layers:
        return "This study has no spectra of heads."
    middle = {site: float(np.median(values)) for site, values in layers.items()}
    if all(np.isinf(value) for value in middle.values()):
        return (
            f"In no layer does the median head reach 90 % of the held-out variance of its {what}"
            " with the components that were kept."
        )
    low, high = (
        min(middle, key=lambda site: middle[site]),
        max(middle, key=lambda site: middle[site]),
    )
    if low == high:
        text = (
            f"The median head needs {_dimension(middle[low])} dimensions for 90 % of the held-out"
            f" variance of its {what}"
        )
    else:
        text = (
            f"For 90 % of the held-out variance of its {what}, the median head of {labels(low)}"
            f" needs the fewest dimensions ({_dimension(middle[low])})"
        )
        text += f" and that of {labels(high)} the most ({_dimension(middle[high])})"
    if gaps and np.median(gaps):
        text += (
            f". On documents that were held out, the median head needs {np.median(gaps):g}"
            " dimensions more than in the sample"
        )
    return text + "."


def _dimension(value: float) -> str:
    return "more than were kept" if np.isinf(value) else f"{value:g}"


def _main(numbers: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """The main analysis: rows where the study has them, matrices otherwise.

    As a word, and as the prefix of its numbers.
    """
    rows = any(record.get("rows_centred_dimensions") for record in numbers)
    return ("rows", "rows_centred") if rows else ("matrices", "matrices_centred")


def head_sentences(
    numbers: Sequence[dict[str, Any]], roles: Mapping[Head | Site, Sequence[str]] | None = None
) -> list[str]:
    """One text per head: its dimensions, its roles, and what the plan gives it."""
    what, prefix = _main(numbers)
    known = sorted(
        d for record in numbers if (d := record.get(f"{prefix}_held_out_dimension_90")) is not None
    )
    sentences = []
    for record in numbers:
        parts = []
        size, found = (
            record.get(f"{prefix}_dimensions"),
            record.get(f"{prefix}_held_out_dimension_90"),
        )
        if size and found is not None:
            fewer = sum(d < found for d in known)
            rank = (
                "no head needs fewer"
                if not fewer
                else f"{fewer} of {len(numbers)} heads need fewer"
            )
            among = "" if len(numbers) == 1 else f" ({rank})"
            inside = record[f"{prefix}_dimension_90"]
            sample = "" if inside is None else f", and {inside} in the sample"
            valid = record.get(f"{prefix}_valid_rows_held_out_dimension_90")
            sample += "" if valid is None else f"; {valid} over valid rows only"
            parts.append(
                f"This head needs {found} of {size} dimensions for 90 % of the held-out variance of"
                f" its {what}{among}{sample}."
            )
        elif size:
            most = record.get(f"{prefix}_held_out_at_16")
            share = "" if most is None else f"; 16 components hold {percent(most)}"
            parts.append(
                f"This head does not reach 90 % of the held-out variance of its {what} with the"
                f" components that were kept{share}."
            )
        parts += (roles or {}).get(location_of(record), [])
        if record.get("plan_estimator"):
            lost = record.get("plan_total_variation")
            loses = (
                ""
                if lost is None
                else f", which moves its patterns by {lost:.3f} in total variation"
            )
            parts.append(
                f"In the plan its estimator is {record['plan_estimator']}, for"
                f" {percent(record['plan_work'])} of the work{loses}."
            )
        if record.get("paths_all") is not None:
            parts.append(
                f"Paths through this head make {percent(record['paths_all'])} of the output of the"
                f" {record['stack']}."
            )
        sentences.append(" ".join(parts))
    return sentences
