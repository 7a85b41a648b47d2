"""The frozen linear graph: a transformer at one input, with everything nonlinear held fixed.

With patterns P, the statistics of norms and the gates of MLPs frozen at their values for an input
X, every part is affine:

    attention  y ↦ Σ_h P_h y W_V,h W_O,h    + P b_V W_O + b_O
    norm       y ↦ (y − ȳ) · g / σ          + b                    (RMS norms without the mean)
    MLP        y ↦ (r ⊙ (y W_1)) W_2        + (r ⊙ b_1) W_2 + b_2  (r = φ(z)/z; gated: φ(gate))

The graph reproduces the model's output at X exactly and is linear everywhere. It is not the
Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..captures import AttentionCall, capture
from ..errors import EigenlensError
from .blocks import Attend, Block, Branch, Mlp, read_stacks
from .check import first_of, never_drops, same_output
from .frozen_parts import FrozenAttention, FrozenMlp, FrozenNorm, FrozenPart, FrozenSource, Scaled
from .head_weights import read_head_weights


@dataclass(frozen=True, eq=False)
class FrozenBranch:
    """A chain of affine parts beside the skip."""

    kind: str
    parts: tuple[FrozenPart, ...]
    bias: Tensor  # (B, T, C), what the branch gives for a zero stream

    @property
    def attention(self) -> FrozenAttention:
        """The attention of a branch of the kind `attention`."""
        return next(part for part in self.parts if isinstance(part, FrozenAttention))

    @property
    def heads(self) -> int:
        return self.attention.heads if self.kind == "attention" else 1

    def linear(self, y: Tensor) -> Tensor:
        """Apply the linear part to streams (…, B, T, C)."""
        for part in self.parts:
            y = part.linear(y)
        return y

    def adjoint(self, g: Tensor) -> Tensor:
        """Apply the transpose of the linear part to directions (…, B, T, C)."""
        for part in reversed(self.parts):
            g = part.adjoint(g)
        return g

    def around_attention(self) -> tuple[list[FrozenPart], FrozenAttention, list[FrozenPart]]:
        """The parts before the attention, the attention, and the parts after it."""
        place = self.parts.index(self.attention)
        return list(self.parts[:place]), self.attention, list(self.parts[place + 1 :])

    def of_heads(self, y: Tensor, heads: Tensor) -> Tensor:
        """Apply the linear part of one head per stream: y (S, B, T, C), heads (S,)."""
        for part in self.parts:
            y = part.of_heads(y, heads) if isinstance(part, FrozenAttention) else part.linear(y)
        return y


@dataclass(frozen=True, eq=False)
class FrozenStage:
    """Branches that are added, and the norm of their sum."""

    branches: tuple[FrozenBranch, ...]
    keeps: bool  # the stream itself is in the sum
    after: FrozenNorm | None

    @property
    def attends(self) -> bool:
        return any(branch.kind == "attention" for branch in self.branches)

    def __call__(self, y: Tensor, bias: bool = True) -> Tensor:
        """Apply the stage to a stream (…, B, T, C), with or without its biases."""
        total = y if self.keeps else torch.zeros_like(y)
        for branch in self.branches:
            total = total + branch.linear(y) + (branch.bias if bias else 0)
        return total if self.after is None else self.after(total, bias)

    def adjoint(self, g: Tensor) -> Tensor:
        """Apply the transpose of the stage without its biases, (…, B, T, C)."""
        g = g if self.after is None else self.after.adjoint(g)
        total = g if self.keeps else torch.zeros_like(g)
        for branch in self.branches:
            if branch.kind != "cross":  # reads nothing of this stream
                total = total + branch.adjoint(g)
        return total


@dataclass(frozen=True, eq=False)
class FrozenStack:
    """All stages of an encoder or decoder for one batch, from `inputs` to `output` (B, T, C)."""

    name: str
    inputs: Tensor
    output: Tensor
    blocks: tuple[tuple[FrozenStage, ...], ...]
    final: FrozenNorm | None
    valid: Tensor | None = None  # (B, T) bool: False marks padding

    def stages(self) -> Iterator[FrozenStage]:
        for block in self.blocks:
            yield from block

    def branches(self, kind: str) -> list[FrozenBranch]:
        return [
            branch for stage in self.stages() for branch in stage.branches if branch.kind == kind
        ]

    @property
    def heads(self) -> tuple[int, ...]:
        """The heads of every attention."""
        return tuple(branch.heads for branch in self.branches("attention"))

    def __call__(self, y: Tensor, bias: bool = True) -> Tensor:
        """Apply the graph to a stream (…, B, T, C): `T·y + B`, or only `T·y`."""
        for stage in self.stages():
            y = stage(y, bias)
        return self.through_final_norm(y, bias)

    def through_final_norm(self, y: Tensor, bias: bool = False) -> Tensor:
        """Apply the last norm to a stream after the last block, (…, B, T, C).

        Only its linear part unless asked otherwise.
        """
        return y if self.final is None else self.final(y, bias)

    def adjoint(self, g: Tensor) -> Tensor:
        """Return `Tᵀ·g` for directions (…, B, T, C) of the output.

        It says how much each direction depends on every token and channel of the input.
        """
        g = g if self.final is None else self.final.adjoint(g)
        for stage in reversed(list(self.stages())):
            g = stage.adjoint(g)
        return g


@torch.no_grad()
def freeze(
    model: nn.Module,
    batch: Mapping[str, Any],
    forward: Callable[[Mapping[str, Any]], Any] | None = None,
) -> tuple[FrozenStack, ...]:
    """Freeze a model at one batch into a linear graph per stack.

    Runs the model once. Memory per layer: patterns `B·H·T²` and gates `B·T·4C` numbers.

    Parameters
    ----------
    model : nn.Module
        The model, in float32 or float64 and without dropout; a transformers model without a head
        gives the stream after its last norm.
    batch : mapping
        What the model is called with, such as `{"input_ids": ids}`, for B inputs of T tokens.
    forward : callable, optional
        `forward(batch)` runs the model. Default: `model(**batch)`.

    Returns
    -------
    tuple of FrozenStack
        One graph for each stack (encoder, decoder), with inputs and output `(B, T, C)`.

    Raises
    ------
    EigenlensError
        If the blocks of the model are not known, or if it is in half precision.

    Examples
    --------
    >>> (stack,) = freeze(model, {"input_ids": ids})
    >>> stack(stack.inputs)                                     # the model's output
    """
    never_drops(model, "frozen")
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        raise EigenlensError(
            "half precision is too coarse for a frozen graph; give the model in float32:"
            " model.float()"
        )
    stacks = read_stacks(model)
    by_module = {
        id(block.module): (stack.name, block) for stack in stacks for block in stack.blocks
    }
    calls: list[AttentionCall] = []
    frozen: dict[str, list[tuple[FrozenStage, ...]]] = {stack.name: [] for stack in stacks}
    # input, output, valid
    ends: dict[str, list[Any]] = {stack.name: [None, None, None] for stack in stacks}
    finals: dict[str, nn.Module] = {}

    def before(_module: nn.Module, _args: Any, _kwargs: Any) -> None:
        calls.clear()

    def after(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        name, block = by_module[id(module)]
        x, given = block.bind_call(args, kwargs)
        stages, y = _freeze_block(block, x, given, calls)
        valid = next((call.query_valid for call in calls if call.kind == "self"), None)
        same_output(block, _real(out, valid), _real(y, valid))
        frozen[name].append(stages)
        if ends[name][0] is None:
            ends[name][0], ends[name][2] = x, valid
        ends[name][1] = first_of(out)  # the model's own, which the graph is measured by

    def at_end(name: str) -> Callable[..., None]:
        def note(norm: nn.Module, args: Any) -> None:
            last, valid = ends[name][1:]
            if last is None or args[0].shape != last.shape:
                return
            if torch.allclose(_real(args[0], valid), _real(last, valid), rtol=1e-3, atol=1e-4):
                finals[name] = norm

        return note

    hooks = []
    for stack in stacks:
        if stack.final is not None:
            hooks.append(stack.final.register_forward_pre_hook(at_end(stack.name)))
        for block in stack.blocks:
            hooks.append(block.module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(block.module.register_forward_hook(after, with_kwargs=True))
    try:
        with capture(model, calls.append):
            (forward or (lambda given: model(**given)))(batch)
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for stack in stacks:
        first, last, valid = ends[stack.name]
        if first is None:
            continue  # a decoder that did not run
        final = FrozenNorm.of(finals[stack.name], last) if stack.name in finals else None
        output = last if final is None else final(last)
        found.append(
            FrozenStack(stack.name, first, output, tuple(frozen[stack.name]), final, valid)
        )
    return tuple(found)


def _real(out: Any, valid: Tensor | None) -> Tensor:
    """Return the tokens of a block's output that are not padding.

    A frozen pattern leaves the rows of padding empty.
    """
    out = first_of(out)
    return out if valid is None else out[valid]


def _freeze_block(
    block: Block, x: Tensor, given: dict[str, Any], calls: Sequence[AttentionCall]
) -> tuple[tuple[FrozenStage, ...], Tensor]:
    """Freeze the block's stages along x, and return them with their output.

    That is the block's own output, up to rounding.
    """
    waiting = list(calls)
    stages = []
    for stage in block.stages:
        total = (
            x if (keeps := any(branch.skip for branch in stage.branches)) else torch.zeros_like(x)
        )
        branches = []
        for branch in stage.branches:
            if branch.kind == "cross" and given.get("encoder_hidden_states") is None:
                continue
            found, out = _freeze_branch(branch, x, given, waiting)
            branches.append(found)
            total = total + out
        after = None if stage.after is None else FrozenNorm.of(stage.after, total)
        x = total if after is None else after(total)
        if branches:
            stages.append(FrozenStage(tuple(branches), keeps, after))
    return tuple(stages), x


def _freeze_branch(
    branch: Branch, x: Tensor, given: dict[str, Any], waiting: list[AttentionCall]
) -> tuple[FrozenBranch, Tensor]:
    """Freeze the branch along x, and return it with its output."""
    parts: list[FrozenPart] = []

    def add(part: FrozenPart, u: Tensor) -> Tensor:
        parts.append(part)
        return part(u)

    u = x if branch.before is None else add(FrozenNorm.of(branch.before, x), x)
    if isinstance(branch.linear, Mlp):
        u = add(FrozenMlp.of(branch.linear, u), u)
    else:
        call = _take(waiting, "cross" if branch.kind == "cross" else "self")
        u = add(_freeze_attention(branch.linear, call, branch.kind, given, u), u)
    if branch.within is not None:
        u = add(FrozenNorm.of(branch.within, u), u)
    if branch.scale is not None:
        u = add(Scaled.of(branch.scale, u), u)
    bias: Tensor | None = None  # of a zero stream, so nothing before the first part that has one
    for part in parts:
        bias = part.bias if bias is None else part(bias.expand_as(x))
    bias = torch.zeros_like(x) if bias is None else bias.expand_as(x)
    return FrozenBranch(branch.kind, tuple(parts), bias), u


def _freeze_attention(
    attend: Attend, call: AttentionCall, kind: str, given: dict[str, Any], u: Tensor
) -> FrozenPart:
    weights = read_head_weights(attend.module, call.heads, call.k.shape[1], attend.output)
    reads = given["encoder_hidden_states"] if kind == "cross" else u
    attention = FrozenAttention(call.pattern(), weights, call, reads)
    return FrozenSource(attention(reads)) if kind == "cross" else attention


def _take(waiting: list[AttentionCall], kind: str) -> AttentionCall:
    for index, call in enumerate(waiting):
        if call.kind == kind:
            return waiting.pop(index)
    raise EigenlensError(
        f"no {kind}-attention call of a block was captured, so its pattern cannot be frozen"
    )
