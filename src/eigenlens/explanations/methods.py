"""All methods that say which tokens decide, on one observation of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..anatomy.frozen import FrozenStack, freeze
from ..captures.precision import stays_double
from ..errors import EigenlensError
from ..models.forward import forward_of
from ..models.load import Model
from ..names import split_names, unknown_name
from . import baselines
from .linear_operator import Operator, in_out_of, norms_of, toward
from .observed import Observed, Stream, observe
from .propagation import relevance
from .steps import source_stream
from .target import Target

Frozen = tuple[FrozenStack, ...] | None


def _of_source(observed: Observed, frozen: Frozen) -> tuple[Stream, Operator]:
    """The source stream and its operator; an error if the model could not be frozen."""
    stream = source_stream(observed)
    stack = next((stack for stack in frozen or () if stack.name == stream.stack), None)
    if stack is None:
        raise EigenlensError(
            f"the stack {stream.stack} of this model could not be frozen, so it has no linear"
            " operator"
        )
    return stream, Operator(stack)


def _in_out(observed: Observed, frozen: Frozen) -> Tensor:
    stream, op = _of_source(observed, frozen)
    return in_out_of(op, observed.reads(stream.stack)) * stream.valid


def _norm(observed: Observed, frozen: Frozen) -> Tensor:
    stream, op = _of_source(observed, frozen)
    return norms_of(op, observed.reads(stream.stack)) * stream.valid


def _toward(observed: Observed, frozen: Frozen) -> Tensor:
    stream, op = _of_source(observed, frozen)
    return (
        toward(op, stream.output_gradient if op.stack.final is None else stream.ended_gradient)
        * stream.valid
    )


METHODS: dict[str, Callable[[Observed, Frozen], Tensor]] = {
    # the I would outshine the rest
    "relevance": lambda observed, _: relevance(observed, start=False),
    "attention × gradient": lambda observed, _: baselines.attention_gradient(observed),
    "attention": lambda observed, _: baselines.attention(observed),
    "rollout": lambda observed, _: baselines.rollout(observed),
    "Grad-CAM": lambda observed, _: baselines.grad_cam(observed),
    "gradient × input": lambda observed, _: baselines.gradient_input(observed),
    "TensorLens In+Out": _in_out,
    "TensorLens norm": _norm,
    "TensorLens toward the target": _toward,
    "random": lambda observed, _: baselines.random_scores(observed),
}
"""A method: (observation, frozen stacks) → scores (B, T) of source tokens, 0 for padding."""
FREEZES = frozenset(name for name in METHODS if name.startswith("TensorLens"))
"""Methods that need the model frozen."""


class Attributions(dict[str, Tensor]):
    """The scores (B, T) by method, the observation, and notes on methods left out."""

    def __init__(
        self, scores: Mapping[str, Tensor], observed: Observed, notes: Sequence[str] = ()
    ) -> None:
        super().__init__(scores)
        self.observed = observed
        self.notes = tuple(notes)


def attribute(
    model: Model,
    batch: Mapping[str, Tensor],
    target: Target,
    methods: str | Sequence[str] | None = None,
) -> Attributions:
    """Compute scores (B, T) of the source tokens by all methods, or the named ones; padding has 0.

    The model is observed once, and frozen once if a TensorLens method is asked for. A model whose
    blocks are not known cannot be frozen: then these methods are left out, and `notes` say so.

    >>> attribute(model, batch, target_of(model, batch))["relevance"].shape      # (B, T)
    """
    names = list(METHODS) if methods is None else split_names(methods)
    if wrong := next((name for name in names if name not in METHODS), None):
        raise unknown_name("method", wrong, METHODS)
    if not names:
        raise EigenlensError(f"no method was named; there are {', '.join(METHODS)}")
    notes, frozen = [], None
    double = any(p.dtype == torch.float64 for p in model.module.parameters())
    with stays_double() if double else contextlib.nullcontext():
        observed = observe(model, batch, target)
        if FREEZES & set(names):
            try:
                frozen = _frozen(model, batch, observed)
            except EigenlensError as error:
                notes.append(f"the TensorLens methods were left out: {error}")
    with torch.no_grad():
        scores = {
            name: METHODS[name](observed, frozen)
            for name in names
            if name not in FREEZES or frozen is not None
        }
    return Attributions(scores, observed, notes)


def _frozen(
    model: Model, batch: Mapping[str, Tensor], observed: Observed
) -> tuple[FrozenStack, ...]:
    """Freeze the whole model, with the names of its stacks as observed."""
    stacks = freeze(model.module, batch, forward_of(model, with_head=True))
    source = source_stream(observed).stack
    if source not in {stack.name for stack in stacks}:
        raise EigenlensError(f"the stack {source} has blocks that are not known")
    return stacks
