"""FAST: factorizable attention for speeding up transformers (arXiv 2402.07901).

Its fastmax is measured beside softmax.

The formula, its rank, causality and cost are checked as they stand. What becomes of it in training
is a miniature: small models with softmax and with fastmax, on text and on a task that needs to pick
single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from . import measures
from .claims import claims_of
from .measures import KINDS, UNNORMALISED
from .pictures import charts


@dataclass(frozen=True)
class Scale:
    """`tokens` of the checks, `lengths` and `widths` of the start, `times` of the clock.

    Small models train for `steps`.
    """

    tokens: int = 300
    widths: tuple[int, ...] = (16, 32, 64)
    rank_widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    lengths: tuple[int, ...] = (128, 256, 512, 1024)
    starts: int = 3
    times: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    rounds: int = 5
    text: str = "python-docs"
    length: int = 128
    width: int = 64
    layers: int = 2
    heads: int = 4
    steps: int = 250
    sort_steps: int = 600
    rate: float = 3e-3
    seeds: int = 2


FULL = Scale()
QUICK = Scale(
    tokens=150,
    rank_widths=(1, 2, 4, 8),
    lengths=(128, 1024),
    starts=1,
    times=(256, 1024, 4096),
    rounds=2,
    length=48,
    width=32,
    heads=2,
    steps=12,
    sort_steps=20,
    seeds=1,
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    n, seeds = scale.tokens, range(seed, seed + scale.starts)
    makes: dict[str, Any] = {
        "agreement": partial(measures.agreement, n, 32, seed),
        "ranks": partial(measures.ranks, scale.rank_widths, n, seed),
        "kernels": partial(measures.kernels, n, 32, seed),
        "leaks": partial(measures.leaks, n, 32, seed),
        "sharpest": partial(measures.sharpest, (64, *scale.lengths), 32),
        "starts": partial(measures.starts, scale.lengths, scale.widths, seeds),
        "random-models": partial(measures.random_models, max(scale.lengths), 64, seeds),
        "operations": partial(measures.operations, scale.widths, 1024),
    }
    found = {
        name.replace("-", " "): rows
        for name, rows in zip(makes, parts.each(makes, progress, "measuring random heads"))
    }
    found["times"] = parts.part(
        "times", partial(measures.times, scale.times, 8, 32, scale.rounds, seed)
    )
    trainings = {
        f"training/{task}-{number}-{run}": partial(
            measures.trained, task, kind, run, scale, progress
        )
        for task in ("text", "sort")
        for number, kind in enumerate((*KINDS, *UNNORMALISED))
        for run in range(seed, seed + scale.seeds)
    }
    stage = f"training {numbered(len(trainings), 'model')}"
    training = [row for rows in parts.each(trainings, progress, stage) for row in rows]
    return {
        **found,
        "start": start_rows(found["starts"]),
        "training": training,
        "trained": trained_rows(training),
    }


def start_rows(starts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each mechanism, width and length at the start: means over the seeds."""
    found = []
    for kind, d, n in dict.fromkeys((row["mechanism"], row["D"], row["tokens"]) for row in starts):
        rows = [
            row for row in starts if (row["mechanism"], row["D"], row["tokens"]) == (kind, d, n)
        ]
        keys = ("entropy / ln N", "s1", "s2 √N", "stable rank")
        found.append(
            {
                "mechanism": kind,
                "D": d,
                "tokens": n,
                **{key: sum(row[key] for row in rows) / len(rows) for key in keys},
            }
        )
    return sorted(found, key=lambda row: (row["D"], list(KINDS).index(row["mechanism"])))


def trained_rows(training: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each task and mechanism at its last step: means over the seeds, least and largest loss."""
    found = []
    for task, kind in dict.fromkeys((row["task"], row["mechanism"]) for row in training):
        rows = [
            row
            for row in training
            if (row["task"], row["mechanism"]) == (task, kind) and row["entropy / ln N"] is not None
        ]
        mean = {
            key: sum(row[key] for row in rows) / len(rows)
            for key in ("loss", "accuracy", "entropy / ln N")
        }
        losses = [row["loss"] for row in rows]
        found.append(
            {
                "task": task,
                "mechanism": kind,
                **mean,
                "low": min(losses),
                "high": max(losses),
                "seeds": len(rows),
            }
        )
    return found


SHOWN = (
    ("Processor time of a causal forward pass on one thread", "times"),
    ("Random start: entropy, singular values and stable rank", "start"),
    ("Entropy of attention in a lab model at its random start", "random models"),
    ("The largest weight that one key can get", "sharpest"),
    ("How far earlier outputs move when a later token grows", "leaks"),
    ("Small models after training, mean of the seeds", "trained"),
)
NOTES = (
    "times are processor time of one thread, beside torch's own attention in the same round",
    "training is a miniature of our own; no published figure stands beside it",
)
paper = Paper(
    "fast",
    "FAST: factorizable attention for speeding up transformers (arXiv 2402.07901)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
)
