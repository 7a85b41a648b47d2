"""How much a post-norm block brings tokens together, and the bound on it (arXiv 2202.08625).

    d_M(H_{l+1}) ≤ v · d_M(H_l),   v = (1 + s²)(1 + √λ · h · s) / (σ₁ σ₂),   d_M(H) = ‖(I − 11ᵀ/n) H‖_F

for `H' = N₁(H + Σ_h Â_h H W_VO,h)`, `H_{l+1} = N₂(H' + ReLU(H' W₁) W₂)`, h heads. s is the largest singular value of the
`W_VO,h`, `W₁` and `W₂`, λ the largest eigenvalue of `Âᵀ(I − 11ᵀ/n)Â` of any head, σ the smallest standard deviation of a token
at each norm. Each factor is a Lipschitz constant:

- rows of  sum to one, so `(I − 11ᵀ/n)ÂH = (I − 11ᵀ/n)Â(H − 1mᵀ)` with m the mean token: √λ a head, and s for its weights;
- a ReLU moves no pair of tokens apart; an activation of slope up to `slope` (GELU: 1.13) multiplies s² by it;
- a norm sends a token to `√C` times its direction, which is the projection onto a ball of radius `√C σ`, over σ.

The last holds for norms without a gain. Trained norms have one: the largest gain of each multiplies v (`gained`). Two more of
the inequalities can be had sharper, `s₁ s₂` of the two maps for s² and `Σ_h √λ_h s_h` for √λ·h·s (`sharp`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...capture import attention_names, capture, capture_layers
from ...errors import EigenlensError
from ...explain import Block, anatomy, head_weights
from ...explain.anatomy import Attend, Mlp
from ...explain.head_weights import linear_map
from ...stats.geometry import mean_cosine, residual

GELU = 1.13
"""The largest slope of a GELU is 1.129; that of a ReLU is 1."""


@dataclass(frozen=True)
class Step:
    """One block on one input; `maps` is the cosine of its attention map, mean over heads, with that of the block before."""

    layer: int
    input: int
    similarity_in: float  # mean cos(h_i, h_j), i ≠ j
    similarity: float  # the same behind the block
    distance_in: float  # d_M
    distance: float
    maps: float | None
    s: float
    root: float  # √λ, the largest of the heads
    sigma: float  # σ₁ σ₂
    v: float
    gained: float
    sharp: float

    @property
    def ratio(self) -> float:
        return self.distance / self.distance_in if self.distance_in > 0 else 0.0

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def distance(X: Tensor) -> Tensor:
    """`d_M(X) = ‖(I − 11ᵀ/n) X‖_F`, (B, T, C) → (B,): how far the tokens are from one vector for all."""
    return residual(X).flatten(1).norm(dim=1)


def map_cosine(P: Tensor, Q: Tensor) -> Tensor:
    """The cosine of the attention maps (B, H, T, T) of two layers, each the mean over its heads, (B,)."""
    p, q = (A.double().mean(1).flatten(1) for A in (P, Q))
    return (p * q).sum(1) / (p.norm(dim=1) * q.norm(dim=1))


def bound(s: float, root: float, heads: int, sigma: float, slope: float = 1.0) -> float:
    """`v = (1 + slope·s²)(1 + √λ·h·s) / (σ₁σ₂)`."""
    return (1 + slope * s * s) * (1 + root * heads * s) / sigma


@torch.no_grad()
def block_steps(model: nn.Module, forward: Callable[[], Any], slope: float = 1.0) -> list[Step]:
    """Every block of a post-norm encoder on every input of one forward pass; the inputs must be without padding."""
    stacks = anatomy(model)
    if len(stacks) != 1:
        raise EigenlensError(f"the bound is for an encoder alone; {type(model).__name__} has {len(stacks)} stacks of blocks")
    blocks = [_PostNorm(block) for block in stacks[0].blocks]
    with capture(model) as calls:
        forward()
    with ExitStack() as hooks, capture_layers(model, attention_names(calls)) as layers:
        for block in blocks:
            for at, norm in enumerate(block.norms):
                seen = norm.register_forward_pre_hook(lambda _, given, block=block, at=at: block.note(at, given[0]))
                hooks.callback(seen.remove)
        forward()
    found: list[Step] = []
    before: Tensor | None = None
    for number, (block, layer) in enumerate(zip(blocks, layers, strict=True)):
        call = layer.calls[0]
        if call.query_valid is not None or call.mask_shape.form != "full":
            raise EigenlensError("the bound is for tokens that all see each other: give inputs without padding and mask")
        P = call.pattern().double()  # (B, H, T, T)
        found += block.steps(number, layer.inputs, layer.outputs, P, before, call.k.shape[1], slope)
        before = P
    return found


class _PostNorm:
    """A block `N₂(x + MLP(x)), x = N₁(H + attention(H))`, and what reached its two norms."""

    def __init__(self, block: Block) -> None:
        kinds = [[branch.kind for branch in stage.branches] for stage in block.stages]
        skips = all(branch.skip and branch.before is None for stage in block.stages for branch in stage.branches)
        norms = [stage.after for stage in block.stages]
        if kinds != [["attention"], ["mlp"]] or not skips or not all(isinstance(norm, nn.LayerNorm) for norm in norms):
            raise EigenlensError(f"the bound is for post-norm blocks with skips, and {block.path} is not one")
        self.norms: list[Any] = norms
        attend, mlp = (stage.branches[0].linear for stage in block.stages)
        assert isinstance(attend, Attend) and isinstance(mlp, Mlp)
        if mlp.gate is not None or mlp.fused:
            raise EigenlensError(f"the bound is for an MLP of two maps, and that of {block.path} has a gate")
        self.attend, self.mlp = attend, mlp
        self.reached: list[Tensor] = [torch.empty(0), torch.empty(0)]

    def note(self, at: int, x: Tensor) -> None:
        """σ of every token (B, T) at a norm, as the norm itself computes it."""
        self.reached[at] = (x.double().var(2, correction=0) + self.norms[at].eps).sqrt()

    def steps(
        self, number: int, H: Tensor, after: Tensor, P: Tensor, before: Tensor | None, kv_heads: int, slope: float
    ) -> list[Step]:
        heads = P.shape[1]
        weights = head_weights(self.attend.module, heads, kv_heads, self.attend.output)
        each = torch.stack([_largest_of_product(weights.value[h // weights.group], weights.output[h]) for h in range(heads)])
        wide, narrow = (float(_largest(linear_map(part)[0])) for part in (self.mlp.wide, self.mlp.narrow))
        s = max(float(each.max()), wide, narrow)
        roots = _largest(P - P.mean(2, keepdim=True))  # (B, H): √λ of each head
        sigmas = self.reached[0].amin(1) * self.reached[1].amin(1)  # (B,)
        gain = 1.0
        for norm in self.norms:
            gain *= 1.0 if norm.weight is None else float(norm.weight.abs().max())
        maps = None if before is None else map_cosine(before, P)
        d_in, d_out, cos_in, cos_out = distance(H), distance(after), mean_cosine(H), mean_cosine(after)
        found = []
        for i in range(len(H)):
            root, sigma = float(roots[i].max()), float(sigmas[i])
            v = bound(s, root, heads, sigma, slope)
            sharp = gain * (1 + slope * wide * narrow) * (1 + float(roots[i] @ each)) / sigma
            found.append(
                Step(
                    number, i, float(cos_in[i]), float(cos_out[i]), float(d_in[i]), float(d_out[i]),
                    None if maps is None else float(maps[i]), s, root, sigma, v, gain * v, sharp,
                )
            )  # fmt: skip
        return found


def _largest(A: Tensor) -> Tensor:
    """The largest singular value of (…, M, N), from the smaller Gram matrix: all that is asked for, at a tenth of the cost."""
    A = A.double()
    gram = A @ A.mT if A.shape[-2] <= A.shape[-1] else A.mT @ A
    return torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0).sqrt()


def _largest_of_product(left: Tensor, right: Tensor) -> Tensor:
    """The largest singular value of `left (C, E) @ right (E, C)` by way of an E × C matrix."""
    return _largest(torch.linalg.qr(left.double()).R @ right.double())
