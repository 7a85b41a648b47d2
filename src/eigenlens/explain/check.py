"""Whether a block is what it was read as: run part by part it must give what its own module gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import EigenlensError
from .anatomy import Block, Given

UNLIKE = "is not built as eigenlens takes it to be: it cannot be run part by part"


def checked(block: Block, own: Any, x: Tensor, given: Given, limit: float = 1e-4) -> None:
    """Raise unless the block as it was read gives what the module itself gave (`own`) for the same input."""
    with torch.no_grad():
        try:
            found = block.run(x, dict(given))
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            first = str(error).strip().split("\n")[0]
            raise EigenlensError(f"{block.path} ({type(block.module).__name__}) {UNLIKE}, and fails ({first})") from error
        same_output(block, own, found, limit)


def same_output(block: Block, own: Any, read_as: Any, limit: float = 1e-4) -> None:
    """Raise unless what a block gave, run part by part, is what the module itself gave."""
    own, read_as = first_of(own).detach(), first_of(read_as).detach()
    error = float((read_as - own).norm() / own.norm().clamp_min(1e-30))
    if not error <= limit:
        raise EigenlensError(
            f"{block.path} ({type(block.module).__name__}) {UNLIKE}, which gives something {error:.1e} off its own output"
        )


def first_of(result: Any) -> Tensor:
    """The stream of what a module gives: the tensor, or the first of several."""
    return result if isinstance(result, Tensor) else result[0]
