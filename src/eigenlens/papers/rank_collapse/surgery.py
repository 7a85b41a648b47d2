"""How the authors cut models up, where that is not how the variants of `collapses` do.

SAN+MLP    the MLP keeps its own skip; `collapses` takes both skips away
SAN+skip   of ALBERT's MLP only the two dense layers become the identity, so that its block ends
           in `norm(u + act(u))`; `collapses` takes the whole MLP and its norm away
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from ...anatomy.switches import Switches
from ...collapses import ablate

KEPT_SKIP, KEPT_ACTIVATION = "SAN+MLP, its skip kept", "SAN+skip, its activation kept"
SURGERIES = {
    ("bert", "SAN+MLP"): KEPT_SKIP,
    ("albert", "SAN+MLP"): KEPT_SKIP,
    ("albert", "SAN+skip"): KEPT_ACTIVATION,
}
"""The authors' form of a variant of a family, where theirs is another."""
DENSE = ("ffn", "ffn_output")


@contextlib.contextmanager
def operated(model: nn.Module, variant: str) -> Iterator[None]:
    """Run a model in the authors' form of a variant while the block of code runs."""
    if variant == KEPT_SKIP:
        with ablate(model, Switches(attention_skip=False)):
            yield
    else:
        with without_dense_layers(model):
            yield


@contextlib.contextmanager
def without_dense_layers(model: nn.Module) -> Iterator[None]:
    """Put the identity in the place of the two dense layers of every ALBERT block's MLP."""
    blocks = [m for m in model.modules() if all(hasattr(m, name) for name in DENSE)]
    had = [{name: getattr(block, name) for name in DENSE} for block in blocks]
    try:
        for block in blocks:
            for name in DENSE:
                setattr(block, name, nn.Identity())
        yield
    finally:
        for block, layers in zip(blocks, had):
            for name, layer in layers.items():
                setattr(block, name, layer)
