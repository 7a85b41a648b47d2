"""Where a relative residual is meaningless: below the rounding of the arithmetic.

Tokens that are equal in exact arithmetic come out of a model with errors of a few `ε` in each entry
(`ε` is the spacing of the numbers at 1). If none is off by more than `4ε` of its size, neither is
their mean, and so

    ‖X − 1x̄ᵀ‖ / ‖X‖ ≤ 2 · 4ε = 8ε        (9.5e-07 in float32, 1.8e-15 in float64).

A residual below that cannot be told from zero. It is shown as `below rounding`; records keep the
number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, get_args

import torch
from torch import nn

Precision = Literal["bfloat16", "float16", "float32", "float64"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)  # the coarsest first
ROUNDINGS = 8
WORDS = "below rounding"


def precision_of(module: nn.Module) -> Precision:
    """Return the coarsest type of the parameters, such as `float32`."""
    kinds = {p.dtype for p in module.parameters()}
    return next((name for name in PRECISIONS if getattr(torch, name) in kinds), "float32")


def rounding_floor(precision: Precision) -> float:
    """Return `8ε` of a type by its name.

    >>> rounding_floor("float32")
    9.5367431640625e-07
    """
    return ROUNDINGS * torch.finfo(getattr(torch, precision)).eps


def describe_residual(value: float, floor: float, form: str = ".2g") -> str:
    """Write a residual for a sentence."""
    return WORDS if value < floor else format(value, form)


def rows_in_words(
    rows: Sequence[dict[str, Any]], names: Collection[str], floor: float
) -> list[dict[str, Any]]:
    """Return rows for people: in the columns `names`, words replace numbers below the floor."""
    return [
        {
            key: WORDS if key in names and isinstance(value, float) and value < floor else value
            for key, value in row.items()
        }
        for row in rows
    ]
