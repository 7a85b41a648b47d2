"""On the benefits of rank in attention layers (arXiv 2407.16153).

One head of full rank against many of low rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...captures import labelled
from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..paper import Paper
from .claims import claims_of
from .pictures import charts
from .theory import rank_one, simulated, sweep
from .training import trained_row
from .truncated import cut_model


@dataclass(frozen=True)
class Scale:
    """How large a run is.

    `d` and `points` (N) are those of the task, `samples` those of least squares, `steps` those of
    training; `models` are cut on `inputs` texts.
    """

    d: int = 8
    points: int = 16
    samples: int = 20_000
    seeds: int = 4
    theory_heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    layers: tuple[int, ...] = (1, 3)
    steps: int = 2000
    batch: int = 128
    rate: float = 0.02
    training_seeds: int = 2
    deep_steps: int = 400
    models: tuple[str, ...] = ("minilm", "stories15m")
    inputs: int = 32
    length: int = 64
    text: str = "python-docs"
    ranks: tuple[int, ...] = (0, 1, 2, 4, 8, 12, 16, 24, 32)
    alone: tuple[int, ...] = (0, 4)


FULL = Scale()
QUICK = Scale(
    samples=3000,
    seeds=2,
    theory_heads=(1, 4, 16),
    layers=(1,),
    steps=80,
    batch=32,
    models=("minilm",),
    inputs=8,
    length=32,
    ranks=(0, 1, 4, 16, 32),
    alone=(1,),
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    sizes = [2**i for i in range(scale.d.bit_length()) if 2**i <= scale.d]
    seeds = [seed * 100 + start for start in range(scale.seeds)]
    swept = partial(sweep, scale.d, scale.points, scale.samples, sizes, (1, 8))
    fitted = parts.each(
        {f"least-squares/seed-{start}": partial(swept, start) for start in seeds},
        progress,
        f"fitting heads by least squares from {numbered(len(seeds), 'seed')}",
    )
    found = [row for one in fitted for row in one]
    theory = parts.each(
        {
            f"rank-one/{heads}": partial(_rank_one, scale, heads, seeds)
            for heads in scale.theory_heads
        },
        progress,
        "simulating heads of rank one",
    )
    runs = [
        (layers, rank, start)
        for layers in scale.layers
        for rank in (1, scale.d // 2, scale.d)
        for start in seeds[: scale.training_seeds if layers == 1 else 1]
    ]
    trained = parts.each(
        {
            f"training/{L}-{r}-{s}": partial(trained_row, scale, L, r, s, parts, progress)
            for L, r, s in runs
        },
        progress,
        f"training {numbered(len(runs), 'model')}",
    )
    cut, alone = [], []
    makes = {
        f"models/{name}": partial(cut_model, name, scale, seed, progress) for name in scale.models
    }
    for both in parts.each(
        makes, progress, f"lowering the rank of heads of {numbered(len(makes), 'pretrained model')}"
    ):
        cut += both["all heads"]
        alone += both["one head"]
    return {
        "least squares": _means(found, ("times", "rank", "heads")),
        "rank one": theory,
        "training": _means(trained, ("layers", "rank", "heads")),
        "truncation": cut,
        "one head": alone,
        "heads that matter": _worst(alone),
        "runs": found,
    }


def _rank_one(scale: Scale, heads: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Theory and simulation of N = 2 points and heads of rank one.

    Means over seeds, and where they are farthest apart.
    """
    theory = [rank_one(scale.d, heads, seed) for seed in seeds]
    found = [simulated(scale.d, heads, scale.samples, seed) for seed in seeds]
    return {
        "heads": heads,
        "theory": sum(t["theory"] for t in theory) / len(seeds),
        "simulated": sum(found) / len(seeds),
        "farthest": max(abs(t["theory"] - s) for t, s in zip(theory, found)),
        "limit": theory[0]["limit"],
    }


def _means(rows: Sequence[dict[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """The mean error over seeds, with the least and the largest."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in by), []).append(row["error"])
    return [
        {
            **dict(zip(by, key)),
            "error": sum(errors) / len(errors),
            "low": min(errors),
            "high": max(errors),
        }
        for key, errors in found.items()
    ]


def _worst(alone: Sequence[dict[str, Any]], number: int = 5) -> list[dict[str, Any]]:
    """The heads of each model that lose most at the lowest rank, beside the median head."""
    found = []
    for model in dict.fromkeys(row["model"] for row in alone):
        least = min(row["rank"] for row in alone if row["model"] == model)
        some = [row for row in alone if (row["model"], row["rank"]) == (model, least)]
        rows = labelled(sorted(some, key=lambda row: row["kept"]))
        found += [*rows[:number], {**rows[len(rows) // 2], "head": "median"}]
    return found


SHOWN = (
    ("Error of hard heads fitted by least squares, d = 8, N = 16", "least squares"),
    ("Error of heads of rank one, N = 2: theory and simulation", "rank one"),
    ("Error of trained attention, rH = d", "training"),
    ("What loaded models keep when all heads are cut to a rank", "truncation"),
    ("Heads whose cut alone loses most", "heads that matter"),
)
NOTES = (
    (
        "error is E‖y − ŷ‖², which is 1 for the answer 0; training is at d = 8, the published"
        " figures at d = 64"
    ),
    (
        "models with rotary positions have a matrix for each distance: queries are cut for the"
        " least mean error over angles"
    ),
)
paper = Paper(
    "rank-versus-heads",
    "On the benefits of rank in attention layers (arXiv 2407.16153)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    NOTES,
    models=("models",),
    kinds=("encoder", "decoder"),
)
