"""Hybrid linear-full attention (arXiv 2602.01763): what full layers can compose, and what a linear
state can hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...lab import Settings
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..curves import curves
from ..paper import Paper
from .claims import claims_of
from .composition import compositions
from .speed import equality, pattern_costs, speed
from .state import capacity
from .training import ends, trained


@dataclass(frozen=True)
class Scale:
    """`values` N and `functions` L of the construction, `pairs` of the capacity, `lengths` of the
    timings, the training.
    """

    values: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    functions: int = 3
    inputs: int = 24
    seeds: int = 3
    pairs: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    width: int = 16
    draws: int = 20
    equal_tokens: int = 512
    chunks: tuple[int, ...] = (16, 32, 64)
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    loop: int = 4096
    heads: int = 8
    head_width: int = 32
    repeats: int = 3
    patterns: tuple[str, ...] = ("FF", "FD", "DF", "DD")
    train_functions: int = 1
    train_values: int = 8
    train_width: int = 64
    train_heads: int = 4
    train_steps: int = 500
    train_batch: int = 64
    train_rate: float = 2e-3
    train_seeds: int = 2


FULL = Scale()
QUICK = Scale(
    values=(8, 64),
    functions=2,
    inputs=12,
    seeds=2,
    draws=8,
    equal_tokens=160,
    chunks=(16, 32),
    lengths=(256, 512, 2048, 4096),
    loop=256,
    repeats=1,
    patterns=("FF", "DD"),
    train_values=4,
    train_width=32,
    train_heads=2,
    train_steps=20,
    train_seeds=1,
)
SHOWN = (
    ("Right answers by look-ups of full attention", "composition"),
    ("Share of Gaussian values left", "capacity"),
    ("Milliseconds of processor time by length", "speed"),
    ("Patterns of layers, over full attention", "patterns"),
    ("Composition learned (a miniature)", "trained"),
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    shape = {"width": scale.train_width, "heads": scale.train_heads, "size": 1.0}
    settings = Settings(
        scale.train_steps,
        scale.train_batch,
        scale.train_rate,
        measure=max(1, scale.train_steps // 6),
    )
    makes = {
        f"composition/{N}": partial(
            compositions, [N], scale.functions, scale.inputs, scale.seeds, seed
        )
        for N in scale.values
    }
    makes["capacity"] = partial(capacity, scale.width, scale.pairs, 64, scale.draws, seed)
    makes["equality"] = partial(
        equality, scale.equal_tokens, 2, scale.head_width, scale.chunks, scale.seeds, seed
    )
    *composed, held, equal = parts.each(makes, progress, "composition, capacity, chunks")
    timed = partial(
        speed,
        scale.lengths,
        scale.loop,
        scale.heads,
        scale.head_width,
        scale.repeats,
        seed,
        partial(progress, "speed"),
    )
    tables = {
        "composition": [row for one in composed for row in one],
        "capacity": held,
        "equality": equal,
        "speed": parts.part("speed", timed),
        "patterns": pattern_costs((4096, 32768, 262144), scale.heads, 128),
    }
    curve = trained(
        scale.patterns,
        scale.train_functions,
        scale.train_values,
        shape,
        settings,
        scale.train_seeds,
        seed,
        parts,
        progress,
    )
    return {**tables, "trained": ends(curve), "training": curve}


def charts(tables: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    import altair as alt

    rows = [
        {**row, "linear look-ups": str(row["linear"] or "none")} for row in tables["composition"]
    ]
    deep = max(row["functions"] for row in rows)
    chance = [
        {**row, "accuracy": row["chance"], "linear look-ups": "a guess"}
        for row in rows
        if row["linear"] == 0
    ]
    panels = [
        _at_powers(
            curves(
                [
                    row
                    for kind in ("a guess", "none", *map(str, range(1, deep + 1)))
                    for row in (*rows, *chance)
                    if row["functions"] == L and row["linear look-ups"] == kind
                ],
                "values",
                "accuracy",
                "linear look-ups",
                title=f"{L} function{'s' if L > 1 else ''}",
                names=("values N", "right answers"),
                log=("x", "y"),
                width=230,
            )
        )
        for L in range(1, deep + 1)
    ]
    composed = alt.hconcat(*panels).properties(
        title="Composition of functions, some look-ups by the best linear state for their table"
    )
    held = [row for row in tables["capacity"] if row["mechanism"] != "sum of pairs"]
    times = [row for row in tables["speed"] if not row["form"].endswith("loop")]
    return {
        "composition": composed,
        "capacity": _at_powers(
            curves(
                held,
                "pairs",
                "left",
                "mechanism",
                title="What is left of N Gaussian pairs, states of width 16",
                names=("pairs N", "share of the values left"),
                log=("x",),
                band=("low", "high"),
            )
        ),
        "speed": _at_powers(
            curves(
                times,
                "tokens",
                "milliseconds",
                "form",
                title="Forward pass by length",
                names=("tokens", "milliseconds of processor time"),
                log=("x", "y"),
            )
        ),
        "training": _learned(tables["training"]),
    }


def _at_powers(chart: Any) -> Any:
    """The same chart with an axis of the powers of two that were measured, and nothing beyond
    them.
    """
    import altair as alt

    for layer in chart.layer:
        if isinstance(layer, alt.LayerChart):
            _at_powers(layer)
        else:
            x = layer.encoding.x
            x.scale, x.axis = (
                alt.Scale(type="log", base=2, nice=False),
                alt.Axis(format="~d", labelOverlap=True),
            )
    return chart


def _learned(rows: Sequence[dict[str, Any]]) -> Any:
    """Mean of the seeds over the steps, with their range."""
    points = []
    for pattern, step in dict.fromkeys((row["pattern"], row["step"]) for row in rows):
        right = [
            row["accuracy"] for row in rows if (row["pattern"], row["step"]) == (pattern, step)
        ]
        points.append(
            {
                "pattern": pattern,
                "step": step,
                "accuracy": sum(right) / len(right),
                "low": min(right),
                "high": max(right),
            }
        )
    return curves(
        points,
        "step",
        "accuracy",
        "pattern",
        title="Composition learned from scratch (a miniature)",
        names=("training steps", "right last answers"),
        band=("low", "high"),
    )


paper = Paper(
    "hybrid",
    "Expressiveness of hybrid linear-full attention (arXiv 2602.01763)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    (
        (
            "the paper is theory: the figures of states and look-ups are those of a numerical"
            " demonstration of it"
        ),
        (
            "times are processor time of all threads together, on a machine that may have had other"
            " work"
        ),
    ),
)
