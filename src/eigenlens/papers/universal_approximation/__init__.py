"""Universal approximation with softmax attention (arXiv 2504.15956).

The construction of the proof, built and measured.
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
from .claims import claims_of
from .errors import TARGETS, function_errors, ramp_errors, sequence_map, sort_errors
from .pictures import charts


@dataclass(frozen=True)
class Scale:
    """How large a run is.

    `anchors` are the numbers p, `heads` the numbers H at p = 9, `units` the hidden units of fitted
    networks.
    """

    anchors: tuple[int, ...] = (5, 9, 17, 33, 65, 129, 257, 513)
    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    places: int = 4001
    tokens: int = 3
    units: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    unit_anchors: int = 65
    samples: int = 3000
    pool: int = 1500
    held_out: int = 400
    starts: int = 3


FULL = Scale()
QUICK = Scale(
    anchors=(5, 9, 17, 33, 65, 129),
    heads=(1, 2, 4, 8),
    units=(8, 32, 128),
    samples=1500,
    pool=600,
    held_out=100,
    starts=2,
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    sizes = [
        (units, target, start)
        for units in scale.units
        for target in TARGETS
        for start in range(scale.starts)
    ]
    makes = {
        f"maps/{list(TARGETS).index(target)}-{units}-{start}": partial(
            sequence_map, scale, target, units, seed * 1000 + start
        )
        for units, target, start in sizes
    }
    maps = parts.each(makes, progress, f"fitting {numbered(len(makes), 'sequence map')}")
    anchors, heads, functions, sort = parts.each(
        {
            "anchors": partial(ramp_errors, scale.anchors, (1,), scale.places),
            "heads": partial(ramp_errors, (9,), scale.heads, scale.places),
            "functions": partial(function_errors, scale.anchors, scale.places),
            "sort": partial(sort_errors, scale.anchors, scale.held_out, seed),
        },
        progress,
        "measuring errors of constructed heads",
    )
    return {
        "anchors": anchors,
        "heads": heads,
        "functions": functions,
        "sort of two": sort,
        "maps": maps,
        "map errors": _summary(maps),
    }


def _summary(maps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over starts, with the least and the largest."""
    found = []
    for target, units in dict.fromkeys((row["target"], row["units"]) for row in maps):
        rows = [row for row in maps if (row["target"], row["units"]) == (target, units)]
        through = [row["attention"] for row in rows]
        found.append(
            {
                "target": target,
                "units": units,
                "attention": sum(through) / len(rows),
                "low": min(through),
                "high": max(through),
                "network": sum(row["network"] for row in rows) / len(rows),
            }
        )
    return found


SHOWN = (
    ("Largest error of a ramp, one head", "anchors"),
    ("Largest error of a ramp, 9 anchors per head", "heads"),
    ("Largest error of two layers of attention that sort two numbers", "sort of two"),
    ("Relative error of sequence maps", "map errors"),
)
NOTES = (
    "keys of the second layer are constants, as anchors beside the sequence; nothing is trained",
)
paper = Paper(
    "universal-approximation",
    "Universal approximation with softmax attention (arXiv 2504.15956)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
)
