"""True and reconstructed patterns of real inputs, with a slider for the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from ..display import visible
from ..plans.examples import Examples
from ..plans.plots import pattern_charts
from .figures import Arrays, Figure, figure

BEST = "best within the budget"
PLAN = "chosen by the plan"
SHOWN = 40
"""Tokens per input on the page; their patterns by every candidate take most of its size."""
EXACT = -1
"""Stands for exact scores where the candidates are numbered."""


@dataclass(frozen=True)
class Patterns:
    """What the slider of a plan can show."""

    figure: Figure
    inputs: list[str]
    heads: list[str]
    modes: list[str]
    budgets: list[float]
    start: int
    windows: list[tuple[int, int]]
    cut: str
    record: dict[str, Any]


def patterns_of(
    examples: Examples, key: str, target: float, length: int, arrays: Arrays
) -> Patterns:
    """The true patterns, and those that every candidate reconstructs.

    Differences are rounded to 1/127 of the largest.
    """
    n = min(SHOWN, examples.true.shape[-1])
    chart = pattern_charts(alt.NamedData(name=key), n)
    drawn = figure(
        key,
        chart,
        "Attention pattern: true, reconstructed, and the difference",
        "Three heat maps of attention weights, queries by keys.",
        renderer="canvas",
    )
    budgets = sorted({b for _, b in examples.candidates if b is not None} | {1.0})
    modes = [BEST, PLAN, *dict.fromkeys(estimator for estimator, _ in examples.candidates)]
    true = examples.true[..., :n, :n].float().numpy()  # (I, P, n, n)
    # (I, P, C, n, n)
    differences = np.nan_to_num(examples.estimated[..., :n, :n].float().numpy() - true[:, :, None])
    names = [examples.labels(head) for head in examples.heads]
    tokens = [
        [[visible(t) for t in known[head.stack][:n]] for head in examples.heads]
        for known in examples.tokens
    ]
    record = {
        "figure": key,
        "true": arrays.add(np.round(65535 * true).astype(np.uint16)),
        "differences": arrays.add_scaled(differences.reshape(-1, n, n), np.int8),
        "tokens": tokens,
        "budgets": budgets,
        "heads": names,
        "fixed": [PLAN],
        "candidates": [list(candidate) for candidate in examples.candidates],
        "work": _finite(examples.work),
        "variation": _finite(examples.total_variation),
        "chosen": {mode: _choices(examples, mode, budgets) for mode in modes},
    }
    half = -(-n // 2)
    windows = [(0, n)] if n <= 24 else [(0, half), (half, n), (0, n)]
    start = min(range(len(budgets)), key=lambda i: abs(budgets[i] - target))
    cut = (
        f"The picture shows the first {n} of {length} tokens; what a query gives to later keys is"
        " not in it."
        if n < length
        else ""
    )
    return Patterns(drawn, _openings(examples), names, modes, budgets, start, windows, cut, record)


def _choices(examples: Examples, mode: str, budgets: list[float]) -> list[list[int | None]]:
    """The candidate that is shown, for every head and budget.

    `EXACT`, or None if no candidate is that cheap.
    """
    return [
        [_choice(examples, mode, head, budget) for budget in budgets]
        for head in range(len(examples.heads))
    ]


def _choice(examples: Examples, mode: str, head: int, budget: float) -> int | None:
    if mode == PLAN:
        chosen = examples.chosen[head]
        return EXACT if chosen is None else chosen
    if mode == BEST:
        return EXACT if budget >= 1 else examples.best(head, budget)
    mine = [
        (nominal or 0.0, i)
        for i, (estimator, nominal) in enumerate(examples.candidates)
        if estimator == mode
        and (nominal or 0.0) <= budget
        and np.isfinite(examples.total_variation[head, i])
    ]
    return max(mine)[1] if mine else None


def _openings(examples: Examples) -> list[str]:
    """The first words of every input."""
    stack = examples.heads[0].stack
    found = []
    for number, known in enumerate(examples.tokens, 1):
        words = " ".join(visible(token, 16) for token in known[stack][:8])
        found.append(f"{number}: {words} …")
    return found


def _finite(numbers: np.ndarray) -> list[list[float | None]]:
    return [
        [float(f"{x:.4g}") if np.isfinite(x) else None for x in row] for row in numbers.tolist()
    ]
