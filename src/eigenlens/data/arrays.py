"""Token ids as data: arrays in memory and `.npy` files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from ..errors import EigenlensError
from .windows import DocumentTokens

IN_MEMORY = "an array ("


class ArrayName(str):
    """Name an array in memory, such as `an array (120 × 40)`.

    `path` is the file that holds it for the time of the run.
    """

    path: Path

    @classmethod
    def of(cls, array: np.ndarray, folder: Path) -> ArrayName:
        """Store an array in a folder, under the name of its shape."""
        name = cls(f"{IN_MEMORY}{' × '.join(map(str, array.shape))})")
        if not array.size:
            raise EigenlensError(f"{name} is empty")
        name.path = folder / "array.npy"
        np.save(name.path, array, allow_pickle=False)
        return name


def in_memory(name: str) -> bool:
    """Whether a name means an array in memory, which a later process cannot read again."""
    return (
        name.startswith(IN_MEMORY) and not isinstance(name, ArrayName) and not Path(name).exists()
    )


def is_array(name: str) -> bool:
    return isinstance(name, ArrayName) or name.endswith(".npy")


def array_of(data: Sequence[Any]) -> np.ndarray:
    """Return lists of numbers, arrays or tensors as one array."""
    try:
        return np.asarray([np.asarray(row) for row in data])
    except (ValueError, TypeError, RuntimeError) as error:
        raise EigenlensError(
            "the rows of token ids have different lengths; cut or pad them to one length"
        ) from error


def width_of(names: Sequence[str]) -> int | None:
    """Return the tokens per row of tables; None if all arrays are flat and can be cut anywhere."""
    widths = {name: ids.shape[1] for name in names if (ids := _opened(name)).ndim == 2}
    if len(set(widths.values())) > 1:
        message = ", ".join(f"{name} has {width}" for name, width in widths.items())
        raise EigenlensError(
            f"the rows of these arrays have different lengths: {message}; study them one by one"
        )
    return next(iter(widths.values()), None)


def array_tokens(
    names: Sequence[str], width: int, vocabulary: int | None
) -> Iterator[DocumentTokens]:
    """Yield documents: each row of a table, or runs of 8 inputs of a flat array."""
    document = -1
    for name in names:
        ids = _opened(name)
        if ids.ndim == 2 and ids.shape[1] != width:
            raise EigenlensError(
                f"the rows of {name} have {ids.shape[1]} tokens, but inputs of {width} tokens are"
                " needed"
            )
        rows = (
            ids
            if ids.ndim == 2
            else (ids[i : i + 8 * width] for i in range(0, len(ids), 8 * width))
        )
        for number, row in enumerate(rows):
            if len(row) and row.min() < 0:
                raise EigenlensError(
                    f"{name} has the token id {int(row.min())}, but token ids must be 0 or more"
                )
            if len(row) and vocabulary is not None and row.max() >= vocabulary:
                raise EigenlensError(
                    f"{name} has the token id {int(row.max())}, which is outside the vocabulary of"
                    f" {vocabulary} tokens"
                )
            document += 1
            short = name if isinstance(name, ArrayName) else Path(name).name
            yield DocumentTokens(
                document, np.asarray(row), f"{short}, {'row' if ids.ndim == 2 else 'run'} {number}"
            )


def _opened(name: str) -> np.ndarray:
    """Map the numbers of a file without copying them; pickles and archives are refused."""
    try:
        with np.errstate(over="ignore"):  # a header may say more than there are numbers for
            ids = np.lib.format.open_memmap(
                name.path if isinstance(name, ArrayName) else name, mode="r"
            )
    except (
        OSError,
        ValueError,
        TypeError,
        ArithmeticError,
        SyntaxError,
        RecursionError,
        TokenError,
    ) as error:
        message = " ".join(str(error).split())[:200]
        raise EigenlensError(f"{name} is not an array of token ids: {message}") from error
    if not np.issubdtype(ids.dtype, np.integer) or ids.ndim not in (1, 2):
        raise EigenlensError(
            f"{name} holds {ids.dtype} of shape {ids.shape}; token ids must be integers in one or"
            " two dimensions"
        )
    return ids
