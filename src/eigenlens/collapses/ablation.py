"""Switching parts of every block of a model off, and on again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from ..anatomy.blocks import Block, read_stacks
from ..anatomy.check import check_block
from ..anatomy.switches import Switches
from ..captures.borrowed import module_of
from ..captures.session import capture_disabled
from ..errors import EigenlensError
from ..names import unknown_name

VARIANTS = {
    "SAN": Switches(attention_skip=False, mlp_skip=False, mlp=False),
    "SAN+MLP": Switches(attention_skip=False, mlp_skip=False),
    "SAN+skip": Switches(mlp=False),
    "full": Switches(),
}
"""The four variants of the paper.

They are pure attention, attention with MLPs, attention with skip connections, and the full model.
"""


@contextlib.contextmanager
def ablate(
    model: Any,
    switches: Switches | str | None = None,
    *,
    attention_skip: bool = True,
    mlp_skip: bool = True,
    mlp: bool = True,
    norm: bool = True,
    attention: bool = True,
) -> Iterator[None]:
    """Run a model with parts of every block off while the block of code runs.

    A sublayer is then

        y = N( [skip on, or the branch is off] · x  +  [the branch is on] · f(x) )

    with the norm N where the family has it. Where attention and MLP stand side by side (GPT-NeoX,
    Phi) they share one skip, which stays as long as one of the branches that run has its own on.
    The norms of the embeddings and behind the last block stay. Inside another `ablate` the inner
    one holds.

    Parameters
    ----------
    model : nn.Module or Model
        The model, which is exactly as it was when the block of code ends.
    switches : Switches or str, optional
        A variant of the paper by name (`"SAN"`, `"SAN+MLP"`, `"SAN+skip"`, `"full"`), or switches.
        Default: the five keywords below.
    attention_skip : bool, default True
        Keep the skip around attention.
    mlp_skip : bool, default True
        Keep the skip around the MLP.
    mlp : bool, default True
        Keep the MLP.
    norm : bool, default True
        Keep the norms of the blocks; off, the identity takes their place.
    attention : bool, default True
        Keep attention, cross-attention included.

    Yields
    ------
    None

    Raises
    ------
    EigenlensError
        If a variant and single switches are given, if there is no such variant, or if the blocks of
        the model are not known.

    Examples
    --------
    >>> with ablate(model, attention_skip=False, mlp_skip=False, mlp=False):
    ...     model(**inputs)                                      # nothing but attention and norms
    """
    apart = Switches(attention_skip, mlp_skip, mlp, norm, attention)
    if switches is not None and apart != Switches():
        raise EigenlensError("give either a variant or single switches, not both")
    chosen = apart if switches is None else switches
    if isinstance(chosen, str):
        if chosen not in VARIANTS:
            raise unknown_name("variant", chosen, VARIANTS)
        chosen = VARIANTS[chosen]
    with replace_forwards(
        module_of(model), lambda block: lambda x, given: block.run(x, given, chosen)
    ):
        yield


@contextlib.contextmanager
def replace_forwards(
    model: nn.Module, run_of: Callable[[Block], Callable[[Any, dict], Any]]
) -> Iterator[None]:
    """Let `run_of(block)(x, given)` replace every block's forward while the code block runs.

    When a block runs for the first time, the parts read from it are checked against its own
    forward.
    """
    blocks = [block for stack in read_stacks(model) for block in stack.blocks]
    had = {id(block): vars(block.module).get("forward") for block in blocks}
    try:
        for block in blocks:
            # of a block that is ablated already, its first
            own = getattr(block.module.forward, "own", block.module.forward)
            block.module.forward = _forward(block, own, run_of(block))
        yield
    finally:
        for block in blocks:
            vars(block.module).pop("forward", None)
            if (own := had[id(block)]) is not None:
                block.module.forward = own


def _forward(
    block: Block, own: Callable[..., Any], run: Callable[[Any, dict], Any]
) -> Callable[..., Any]:
    seen = False

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        x, given = block.bind_call(args, kwargs)
        if not seen and all(_empty(given.get(name)) for name in CACHES):
            # a cache would be written to twice
            bare = {**given, **{name: None for name in CACHES if name in given}}
            with capture_disabled(), _without_dropout(block.module):
                check_block(block, own(x, **bare), x, bare)
            seen = True
        return run(x, given)

    forward.own = own  # type: ignore[attr-defined]
    return forward


CACHES = ("past_key_values", "layer_past")


def _empty(cache: Any) -> bool:
    return cache is None or not cache.get_seq_length()


@contextlib.contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True
