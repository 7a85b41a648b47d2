"""Check that a block was understood: its parts must give what its own module gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EigenlensError, first_line
from .blocks import Block, BlockCall

UNLIKE = "is not built the way eigenlens expects, so it cannot be run part by part"


def check_block(block: Block, own: Any, x: Tensor, given: BlockCall, limit: float = 1e-4) -> None:
    """Raise unless the block, run part by part, gives what its module gave (`own`) for an input."""
    with torch.no_grad():
        try:
            found = block.run(x, dict(given))
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            raise EigenlensError(
                f"{block.path} ({type(block.module).__name__}) {UNLIKE}: it fails"
                f" ({first_line(error)})"
            ) from error
        same_output(block, own, found, limit)


def same_output(block: Block, own: Any, read_as: Any, limit: float = 1e-4) -> None:
    """Raise unless the output of a block, run part by part, equals the module's own."""
    own, read_as = first_of(own).detach(), first_of(read_as).detach()
    error = float((read_as - own).norm() / own.norm().clamp_min(1e-30))
    if not error <= limit:
        raise EigenlensError(
            f"{block.path} ({type(block.module).__name__}) {UNLIKE}: its output would be off by"
            f" {error:.1e}"
        )


def never_drops(model: nn.Module, what: str) -> None:
    """Raise if the model would drop activations at random.

    That is, if a part in training mode has a dropout, or a dropout rate, above 0.
    """
    for path, part in model.named_modules():
        rates = {name: value for name, value in vars(part).items() if "drop" in name.lower()}
        if isinstance(part, nn.modules.dropout._DropoutNd):
            rates["p"] = part.p
        if part.training and any(isinstance(rate, float) and rate > 0 for rate in rates.values()):
            raise EigenlensError(
                "a model in training mode drops activations at random"
                f" ({path or type(part).__name__}), so it cannot be {what}; call model.eval()"
                " first"
            )


def first_of(result: Any) -> Tensor:
    """Return the stream from a module's output: the tensor, or the first of several."""
    return result if isinstance(result, Tensor) else result[0]
