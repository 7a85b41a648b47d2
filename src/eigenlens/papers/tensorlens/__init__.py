"""TensorLens: the whole transformer as one input-dependent linear operator (arXiv 2601.17958).

`F(X) = T(X)·X + B` with patterns, norms and gates held. Measured here are that it is exact for
every family, that its map In+Out is complete, that it is not the Jacobian, what a row of it costs,
and how its maps do in deletion curves beside other methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...display import numbered
from ...run.parts import Parts
from ...run.progress import Progress
from ..claims import Tables
from ..explainability.tables import area_rows, pair_rows
from ..paper import Paper, parts_by_model
from .claims import claims_of
from .comparison import IN_OUT, NORM, deletion_run
from .cost import length_row, width_row
from .exactness import catalogue_rows, family_rows
from .jacobian import catalogue_jacobian, small_rows
from .maps import map_rows
from .pictures import charts
from .small import FAMILIES


@dataclass(frozen=True)
class Scale:
    """Families and starts of small random models.

    Catalogue models, on `inputs` of `length` tokens of `text`.

    T and J are compared on small models of `jacobians` and on the `derived` ones over `probes`
    directions. Costs are taken at `lengths` of `derived[0]` and at `widths` of random ones. The
    deletion asks about `asked` reviews of up to `longest` tokens with `draws` random orders, its
    probe learns from `learned`.
    """

    families: tuple[str, ...] = FAMILIES
    seeds: int = 3
    catalogue: tuple[str, ...] = (
        "minilm",
        "distilbert-gec",
        "stories15m",
        "dinov2-small",
        "smollm2",
    )
    single: tuple[str, ...] = ("smollm2",)  # in float32 alone
    text: str = "wikipedia"
    length: int = 24
    inputs: int = 3
    jacobians: tuple[str, ...] = ("bert", "gpt2", "llama", "vit")
    derived: tuple[str, ...] = ("minilm", "stories15m")
    derived_inputs: int = 6
    probes: int = 8
    lengths: tuple[int, ...] = (32, 64, 128, 256)
    widths: tuple[int, ...] = (64, 128, 256, 512)
    seconds: float = 0.5
    learned: int = 1500
    asked: int = 250
    longest: int = 48
    draws: int = 5
    pictured: tuple[str, ...] = ("minilm", "stories15m")


FULL = Scale()
QUICK = Scale(
    ("bert", "llama"),
    1,
    ("minilm",),
    (),
    "python-docs",
    12,
    3,
    ("bert",),
    ("minilm",),
    2,
    4,
    (16, 32),
    (32, 64),
    0.02,
    100,
    6,
    20,
    2,
    ("minilm",),
)


def measure(scale: Scale, parts: Parts, seed: int, progress: Progress) -> Tables:
    """Measure exactness, the Jacobian, cost, maps of a sentence, and deletion."""
    families = {
        f"exactness/{family}": partial(family_rows, family, scale.seeds, seed)
        for family in scale.families
    }
    exact = [
        row
        for rows in parts.each(families, progress, "checking F(X) = T(X)·X + B on random models")
        for row in rows
    ]
    makes = {
        name: partial(
            catalogue_rows,
            name,
            scale.text,
            scale.length,
            scale.inputs,
            seed,
            name not in scale.single,
        )
        for name in scale.catalogue
    }
    found, missing = parts_by_model(parts, makes, progress, "exactness-of-models")
    exact += [row for rows in found.values() for row in rows]
    derived: dict[str, Any] = {
        f"jacobian/{family}{'-as-started' * started}": partial(
            small_rows, family, scale.seeds, seed, started
        )
        for family in scale.jacobians
        for started in (False, True)
    }
    sizes = (scale.text, scale.length, scale.derived_inputs, scale.probes)
    derived |= {
        f"jacobian/{name}": partial(catalogue_jacobian, name, *sizes, seed)
        for name in scale.derived
    }
    jacobian = [
        row
        for rows in parts.each(derived, progress, "comparing T with the Jacobian")
        for row in rows
    ]
    cost = []
    stage = f"timing {numbered(len(scale.lengths), 'length')}"
    for done, length in enumerate(scale.lengths):
        cost.append(
            parts.part(
                f"cost/{length}",
                partial(length_row, scale.derived[0], scale.text, length, scale.seconds, seed),
            )
        )
        progress(stage, done + 1, len(scale.lengths))
    reviews = (scale.learned, scale.asked, scale.longest, scale.draws)
    deletion = parts.part(
        "deletion", partial(deletion_run, scale.derived[0], *reviews, seed, progress)
    )
    return {
        "exactness": exact,
        "families": _summary(exact, ("weights", "model", "precision"), max),
        "missing": missing,
        "jacobian": jacobian,
        "T and J": _summary(
            jacobian, ("model", "weights"), lambda values: sum(values) / len(values)
        ),
        "cost": cost,
        "width": parts.each(
            {f"width/{width}": partial(width_row, width, 64, seed) for width in scale.widths},
            progress,
            f"measuring the memory of {numbered(len(scale.widths), 'width')}",
        ),
        "areas": area_rows("reviews", deletion),
        "pairs": [
            row for method in (IN_OUT, NORM) for row in pair_rows("reviews", deletion, method)
        ],
        "curves": deletion["curves"],
        "probe": [deletion["facts"]],
        "maps": [
            row
            for rows in parts.each(
                {f"maps/{name}": partial(map_rows, name) for name in scale.pictured},
                progress,
                "drawing the maps of a sentence",
            )
            for row in rows
        ],
    }


def _summary(
    rows: Sequence[dict[str, Any]], by: tuple[str, ...], of: Callable[[list[float]], float]
) -> list[dict[str, Any]]:
    """One row per value of the columns `by`, every number put together by `of`.

    What is the same in all of them stays.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in by), []).append(row)

    def summarised(values: list[Any]) -> Any:
        return values[0] if len(set(values)) == 1 else of(values)

    skip = {*by, "seed", "input"}
    return [
        {
            **dict(zip(by, place)),
            "rows": len(some),
            **{key: summarised([row[key] for row in some]) for key in some[0] if key not in skip},
        }
        for place, some in groups.items()
    ]


SHOWN = (
    ("Error of F(X) = T(X)·X + B: the largest over starts and inputs", "families"),
    ("T beside the Jacobian J: means over inputs", "T and J"),
    ("Times relative to a forward pass, and memory (MB), by length", "cost"),
    ("Memory (MB) by width", "width"),
    (
        (
            "Areas under deletion curves: positive, the smaller the better; negative, the larger"
            " the better"
        ),
        "areas",
    ),
    (
        "Measured beside the claims: how much better than other methods In+Out and norm are",
        "pairs",
    ),
)
MAIN_COLUMNS = {
    "families": (
        "weights",
        "model",
        "precision",
        "relative error",
        "largest error",
        "completeness",
        "largest a_ij of a later token",
    ),
    "T and J": (
        "model",
        "weights",
        "directions",
        "‖T−J‖/‖J‖",
        "cosine of T and J",
        "‖TX+B−Y‖/‖Y‖",
        "‖JX+B−Y‖/‖Y‖",
    ),
    "cost": (
        "tokens",
        "forward ms",
        "freeze / forward",
        "row / forward",
        "column / forward",
        "graph MB",
        "row MB",
        "whole MB",
    ),
    "areas": ("method", "positive", "negative", "positive, accuracy", "negative, accuracy"),
    "pairs": ("method", "against", "order", "gain", "low", "high", "inputs won"),
}
paper = Paper(
    "tensorlens",
    "TensorLens: the whole transformer as one input-dependent linear operator (arXiv 2601.17958)",
    FULL,
    QUICK,
    measure,
    claims_of,
    charts,
    SHOWN,
    (
        (
            "random models have 3 blocks of 32 channels, all weights random, norms and biases too,"
            " and padded inputs"
        ),
        "the comparison on pictures and of more methods is in the paper `explainability`",
    ),
    columns=MAIN_COLUMNS,
    models=("catalogue", "pictured"),
    kinds=("encoder", "decoder"),
)
