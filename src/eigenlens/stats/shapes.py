"""Check tensors from a file against the shapes that they must have."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32)


def check_tensors(
    where: str, tensors: Mapping[str, Tensor], shapes: Mapping[str, str]
) -> dict[str, int]:
    """Return the size of every letter.

    Raises a `ValueError` if a tensor is missing, unknown, of another shape, or not finite.

    Shapes are letters, equal ones for equal sizes, and numbers; `H|1` is either. Numbers are
    float32 or float64, masks bool.

    >>> tensors = {"first": torch.zeros(2, 8), "second": torch.zeros(2, 8, 8)}
    >>> check_tensors("it", tensors, {"first": "H S", "second": "H S S"})
    {'H': 2, 'S': 8}
    """
    if tensors.keys() != shapes.keys():
        other = sorted(tensors.keys() ^ shapes.keys())
        raise ValueError(
            f"{where} has {'no' if other[0] in shapes else 'a'} tensor {other[0][:80]!r}"
        )
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        x, letters = tensors[name], shape.split()
        fits = len(letters) == x.ndim and all(
            _fits(size, letter, sizes) for size, letter in zip(x.shape, letters)
        )
        if not fits or x.dtype not in (*FLOATS, torch.bool):
            raise ValueError(
                f"{where}/{name} is {x.dtype} of shape {tuple(x.shape)}, but must be"
                f" ({', '.join(letters)})"
            )
        if x.dtype != torch.bool and not bool(x.isfinite().all()):
            raise ValueError(f"{where}/{name} contains NaN or infinity")
    return sizes


def _fits(size: int, letter: str, sizes: dict[str, int]) -> bool:
    letter, bar, other = letter.partition("|")
    if bar and size == int(other):
        return True
    return size == (int(letter) if letter.isdigit() else sizes.setdefault(letter, size))
