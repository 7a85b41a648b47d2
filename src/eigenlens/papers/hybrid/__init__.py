"""Hybrid linear-full attention (arXiv 2602.01763).

What full layers can compose, and what a linear state can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ...display import numbered
from ...lab import TrainingSettings
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .composition import compositions
from .pictures import charts
from .speed import equality, pattern_costs, speed
from .state import capacity
from .training import last_rows, trained


@dataclass(frozen=True)
class Scale:
    """`values` N and `functions` L of the construction, and sizes of the rest.

    `pairs` of the capacity, `lengths` of the timings, the training.
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


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    shape = {"width": scale.train_width, "heads": scale.train_heads, "size": 1.0}
    settings = TrainingSettings(
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
    *composed, held, equal = parts.each(
        makes, progress, "measuring composition, capacity and chunks"
    )
    timed = partial(
        speed,
        scale.lengths,
        scale.loop,
        scale.heads,
        scale.head_width,
        scale.repeats,
        seed,
        partial(progress, f"timing {numbered(len(scale.lengths), 'length')}"),
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
    return {**tables, "trained": last_rows(curve), "training": curve}


SHOWN = (
    ("Share of right answers by number of look-ups of full attention", "composition"),
    ("Share of Gaussian values that a state leaves unexplained", "capacity"),
    ("Forward pass by length: milliseconds of processor time", "speed"),
    ("Cost of patterns of layers, full attention = 1", "patterns"),
    ("Composition learned from scratch (a miniature): share of right last answers", "trained"),
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
            "the paper is theory: the published figures of states and look-ups come from a"
            " numerical demonstration of it"
        ),
        (
            "times are processor time of all threads together, on a machine that may have had other"
            " work"
        ),
    ),
)
