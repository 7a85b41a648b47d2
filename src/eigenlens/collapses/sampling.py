"""Random paths: an unbiased estimate of the terms by length, and how fast single paths lose rank.

A path of k hops is drawn with probability `Π w_{l,h} / e_k`, the product of its heads' weights over
the sum of these products over all such paths. With equal weights every layer subset and every head
is as likely as any other, and `C(L, k) H^k · mean` estimates X_k; with weights that follow the size
of what a head adds, fewer paths are wasted. Either way `mean(term / probability)` is unbiased.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy.blocks import Block, Stack, read_stacks, run_stage
from ..anatomy.frozen import FrozenStack
from ..anatomy.switches import Switches
from ..captures import AttentionCall, replace_attention
from ..errors import EigenlensError
from ..names import unknown_name
from ..stats.geometry import relative_residual
from .ablation import replace_forwards


@dataclass(frozen=True, eq=False)
class PathSample:
    """S paths of the same length: `layers` and `heads` (S, k), and log probabilities (S,).

    Layers and heads are in the order of the hops.
    """

    layers: Tensor
    heads: Tensor
    log_probability: Tensor

    def __len__(self) -> int:
        return len(self.layers)

    def head_at(self, layer: int) -> Tensor:
        """The head that each path takes in a layer, −1 for the skip, (S,)."""
        here = self.layers == layer
        return torch.where(here.any(1), (self.heads * here).sum(1), -1)


def head_sizes(frozen: FrozenStack) -> Tensor:
    """Weights for importance sampling: `‖A_{l,h} x_l‖ / ‖x_l‖`, (L, H).

    They are computed at the model's own streams.
    """
    rows, y = [], frozen.inputs
    for stage in frozen.stages():
        for branch in stage.branches:
            if branch.kind == "attention":
                every = torch.arange(branch.heads, device=y.device)
                added = branch.of_heads(y.expand(branch.heads, *y.shape), every)
                rows.append(added.flatten(1).norm(dim=1) / y.norm())
        y = stage(y)
    return torch.stack(rows).double()


def equal_weights(frozen: FrozenStack) -> Tensor:
    """Equal weights (L, H): all paths of one length are equally likely."""
    return torch.ones(len(frozen.heads), frozen.heads[0], dtype=torch.float64)


def draw_paths(weights: Tensor, hops: int, number: int, seed: int = 0) -> PathSample:
    """Draw paths of `hops` hops.

    Their probability is proportional to the product of their heads' `weights (L, H)`.
    """
    L = len(weights)
    if not 0 <= hops <= L:
        raise EigenlensError(f"a path through {L} layers has 0 to {L} attention hops, not {hops}")
    if not bool((weights > 0).all()):
        raise EigenlensError(
            "weights of heads must be positive: a head that is never drawn would bias the estimate"
        )
    generator = torch.Generator().manual_seed(seed)
    sums = weights.double().cpu().sum(1)  # (L,)
    # e[l, j]: elementary symmetric polynomials of the first l sums
    e = sums.new_zeros(L + 1, hops + 1)
    e[:, 0] = 1
    for layer in range(L):
        e[layer + 1, 1:] = e[layer, 1:] + sums[layer] * e[layer, :-1]
    layers = torch.full((number, hops), -1)
    wanted = torch.full((number,), hops)
    for layer in reversed(range(L)):
        take = sums[layer] * e[layer, (wanted - 1).clamp_min(0)] / e[layer + 1, wanted]
        taken = (torch.rand(number, generator=generator, dtype=torch.float64) < take) & (wanted > 0)
        rows = taken.nonzero()[:, 0]
        layers[rows, wanted[rows] - 1] = layer
        wanted = wanted - taken.long()
    flat = weights.double().cpu()[layers.flatten()]  # (S·k, H)
    heads = (
        torch.multinomial(flat, 1, generator=generator).view(number, hops)
        if hops
        else layers.clone()
    )
    log_p = flat.gather(1, heads.view(-1, 1)).log().view(number, hops).sum(1) - e[L, hops].log()
    return PathSample(layers, heads, log_p)


def frozen_terms(frozen: FrozenStack, sample: PathSample) -> Tensor:
    """What each path adds to the output, (S, B, T, C), with everything frozen.

    These are the terms of the theorem.
    """
    y = frozen.inputs.expand(len(sample), *frozen.inputs.shape).clone()
    layer = 0
    for stage in frozen.stages():
        head = (
            sample.head_at(layer).to(y.device)
            if stage.attends
            else torch.full((len(sample),), -1, device=y.device)
        )
        on, off = (head >= 0).nonzero()[:, 0], (head < 0).nonzero()[:, 0]
        moved = torch.zeros_like(y)
        if len(off):
            others = [branch.linear(y[off]) for branch in stage.branches if branch.kind == "mlp"]
            moved[off] = sum(others, y[off] if stage.keeps else torch.zeros_like(y[off]))
        for branch in stage.branches:
            if branch.kind == "attention" and len(on):
                moved[on] = branch.of_heads(y[on], head[on])
        layer += stage.attends
        y = moved if stage.after is None else stage.after.linear(moved)
    return frozen.through_final_norm(y)


def estimated_term(
    frozen: FrozenStack, hops: int, number: int = 100, *, importance: bool = True, seed: int = 0
) -> Tensor:
    """An unbiased estimate (B, T, C) of X_k from `number` random paths."""
    weights = head_sizes(frozen).clamp_min(1e-12) if importance else equal_weights(frozen)
    sample = draw_paths(weights, hops, number, seed)
    scale = torch.exp(-sample.log_probability).to(frozen.inputs)  # (S,)
    return (frozen_terms(frozen, sample) * scale.view(-1, 1, 1, 1)).mean(0)


def pattern_residuals(frozen: FrozenStack, sample: PathSample) -> Tensor:
    """The residual `‖P − 1p̄ᵀ‖ / ‖P‖` of each path's product of patterns, (S, B).

    `P = P_{h_k} ⋯ P_{h_1}`, in the composite norm.
    """
    patterns = [branch.attention.pattern for branch in frozen.branches("attention")]
    found = []
    for layers, heads in zip(sample.layers.tolist(), sample.heads.tolist()):
        product = torch.eye(patterns[0].shape[-1], dtype=torch.float64, device=patterns[0].device)[
            None
        ]
        for layer, head in zip(layers, heads):
            product = patterns[layer][:, head].double() @ product  # (B, T, T)
        found.append(relative_residual(product.expand(len(patterns[0]), -1, -1), frozen.valid))
    return torch.stack(found)


def residuals_by_length(frozen: FrozenStack, number: int, seed: int = 0) -> list[Tensor]:
    """The pattern residuals of `number` random paths of 1, 2, … L hops, (S, B) each."""
    weights = equal_weights(frozen)
    return [
        pattern_residuals(frozen, draw_paths(weights, hops, number, seed))
        for hops in range(1, len(weights) + 1)
    ]


@torch.no_grad()
def rerun_paths(
    model: nn.Module,
    batch: Mapping[str, Any],
    sample: PathSample,
    stack: str | None = None,
    forward: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Tensor:
    """The stream behind the last norm when each path runs as a network of its own, (S, B, T, C).

    On the path a layer is one head on its own input, without skip; off it the stream passes by.
    Patterns, norms and gates follow the path's own stream, so the terms do not add up to the model:
    this is the authors' experiment, not the theorem's. With a sample drawn by importance,
    `exp(−log_probability)` weighs the paths as it does for frozen ones.
    """
    chosen = [s for s in read_stacks(model) if stack is None or s.name == stack]
    if not chosen:
        raise unknown_name("stack", stack, (s.name for s in read_stacks(model)), guess=False)
    rerun, run = _Rerun(chosen[0]), forward or (lambda given: model(**given))
    with replace_forwards(model, rerun.run_of), replace_attention(model, rerun.attend):
        paths = zip(sample.layers.tolist(), sample.heads.tolist())
        return torch.stack(
            [rerun.output(dict(zip(layers, heads)), lambda: run(batch)) for layers, heads in paths]
        )


class _Rerun:
    """Runs paths through the blocks of a stack, each as a network of its own."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.mine = {id(block.module) for block in stack.blocks}
        self.hops: dict[int, int] = {}  # the head by layer of the path that runs
        self.layer, self.head = 0, None
        self.last: Tensor | None = None

    def output(self, hops: dict[int, int], forward: Callable[[], Any]) -> Tensor:
        self.hops, self.layer = hops, 0
        forward()
        assert self.last is not None
        return self.last if self.stack.final is None else self.stack.final(self.last)

    def run_of(self, block: Block) -> Callable[[Tensor, dict[str, Any]], Any]:
        def run(x: Tensor, given: dict[str, Any]) -> Any:
            if id(block.module) not in self.mine:
                return block.run(x, given)
            for stage in block.stages:
                on = stage.attends and self.layer in self.hops
                self.head = self.hops[self.layer] if on else None  # type: ignore[assignment]
                alone = (
                    Switches(attention_skip=False, mlp=False)
                    if on
                    else Switches(attention=not stage.attends)
                )
                x = run_stage(stage, x, given, alone)
                self.layer += stage.attends
                self.head = None
            self.last = x
            return block.finish(x, given)

        return run

    def attend(self, call: AttentionCall) -> Tensor | None:
        if self.head is None:
            return None
        output = call.pattern() @ call.values
        kept = torch.zeros_like(output)
        kept[:, self.head] = output[:, self.head]
        return kept
