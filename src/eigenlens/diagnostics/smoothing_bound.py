"""A bound on how far apart a post-norm block leaves its tokens (arXiv 2202.08625).

    d_M(H_{l+1}) ≤ v · d_M(H_l),   v = (1 + s²)(1 + √λ · h · s) / (σ₁ σ₂),   d_M(H) = ‖(I − 11ᵀ/n)
    H‖_F

for `H' = N₁(H + Σ_h Â_h H W_VO,h)`, `H_{l+1} = N₂(H' + ReLU(H' W₁) W₂)`, h heads. s is the largest
singular value of the `W_VO,h`, `W₁` and `W₂`, λ the largest eigenvalue of `Âᵀ(I − 11ᵀ/n)Â` of any
head, σ the smallest standard deviation of a token at each norm. Each factor is a Lipschitz
constant:

- rows of  sum to one, so `(I − 11ᵀ/n)ÂH = (I − 11ᵀ/n)Â(H − 1mᵀ)` with m the mean token: √λ per
  head, and s for its weights;
- a ReLU moves no pair of tokens apart; an activation of slope up to `slope` (GELU: 1.13) multiplies
  s² by it;
- a norm sends a token to `√C` times its direction, which is the projection onto a ball of radius
  `√C σ`, over σ.

The last holds for norms without a gain. Trained norms have one: the largest gain of each multiplies
v (`gained`). Two more of the inequalities can be made sharper, `s₁ s₂` of the two maps for s² and
`Σ_h √λ_h s_h` for √λ·h·s (`sharp`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..anatomy import Block, read_head_weights
from ..anatomy.blocks import Attend, Mlp
from ..anatomy.head_weights import linear_map
from ..errors import EigenlensError

EXACT = 256
"""Up to this many tokens λ is exact."""

Tape = dict[int, tuple[Tensor, Tensor]]
"""Input and output of each of the two norms of the block that runs, (B, T, C)."""


class Bounds(NamedTuple):
    """The bounds and their factors for some inputs, each (b,)."""

    sigma: Tensor  # σ₁ σ₂
    root: Tensor  # √λ, the largest of the heads
    v: Tensor
    sharp: Tensor  # with the gains of the norms


def smoothing_bound(
    s: float, root: Tensor, heads: int, sigma: Tensor, slope: float = 1.0
) -> Tensor:
    """The bound as published: `v = (1 + slope·s²)(1 + √λ·h·s) / (σ₁σ₂)`."""
    return (1 + slope * s * s) * (1 + root * heads * s) / sigma


class PostNorm:
    """A block `N₂(x + MLP(x)), x = N₁(H + attention(H))`.

    Raises an `EigenlensError` for a block of another kind.

    Its weights are read once, for the singular values of both maps of the MLP and of `W_V W_O` of
    each head, at a cost of C³ per map.
    """

    def __init__(self, block: Block, heads: int, kv_heads: int) -> None:
        kinds = [[branch.kind for branch in stage.branches] for stage in block.stages]
        skips = all(
            branch.skip and branch.before is None
            for stage in block.stages
            for branch in stage.branches
        )
        self.norms = [
            stage.after for stage in block.stages if isinstance(stage.after, nn.LayerNorm)
        ]
        if kinds != [["attention"], ["mlp"]] or not skips or len(self.norms) != 2:
            raise EigenlensError(
                f"the bound holds for post-norm blocks with skips, and {block.path} is not one"
            )
        attend, mlp = (stage.branches[0].linear for stage in block.stages)
        assert isinstance(attend, Attend) and isinstance(mlp, Mlp)
        if mlp.gate is not None or mlp.fused:
            raise EigenlensError(
                f"the bound holds for an MLP of two maps, and that of {block.path} has a gate"
            )
        self.slope = largest_slope(mlp.act)
        weights = read_head_weights(attend.module, heads, kv_heads, attend.output)
        products = [
            _largest_of_product(weights.value[h // weights.group], weights.output[h])
            for h in range(heads)
        ]
        self.each = torch.stack(products)  # (H,): s of each head
        self.wide, self.narrow = (
            float(_largest(linear_map(part)[0])) for part in (mlp.wide, mlp.narrow)
        )
        self.s = max(float(self.each.max()), self.wide, self.narrow)
        self.gain = 1.0
        for norm in self.norms:
            self.gain *= 1.0 if norm.weight is None else float(norm.weight.detach().abs().max())

    @contextmanager
    def watched(self, tape: Tape) -> Iterator[None]:
        """Record the inputs and outputs of the two norms on the `tape`.

        The blocks of a model share the tape.
        """

        def note(at: int, x: Tensor, y: Tensor) -> None:
            if at == 0:
                tape.clear()  # of the block before
            tape[at] = x.detach(), y.detach()

        with ExitStack() as hooks:
            for at, norm in enumerate(self.norms):
                hooks.callback(
                    norm.register_forward_hook(lambda _, x, y, at=at: note(at, x[0], y)).remove
                )
            yield

    def of(self, P: Tensor, rows: list[int], tape: Tape) -> Bounds:
        """Return the bounds for inputs with patterns P (b, H, T, T), the `rows` of the tape."""
        # (b,): the smallest σ of a token at each norm
        deviations = [
            (tape[at][0][rows].double().var(2, correction=0) + norm.eps).sqrt().amin(1)
            for at, norm in enumerate(self.norms)
        ]
        sigma = deviations[0] * deviations[1]
        P = P.double()
        roots = _largest_of_pattern(P - P.mean(2, keepdim=True))  # (b, H): √λ of each head
        root, each = roots.amax(1), self.each.to(roots)
        sharp = self.gain * (1 + self.slope * self.wide * self.narrow) * (1 + roots @ each) / sigma
        return Bounds(
            sigma, root, smoothing_bound(self.s, root, P.shape[1], sigma, self.slope), sharp
        )


def largest_slope(act: Callable[[Tensor], Tensor]) -> float:
    """Return the largest slope of an activation, rounded up to hundredths.

    1 for a ReLU, 1.13 for a GELU, 1.1 for a SiLU.
    """
    middle = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    with torch.enable_grad():
        x = torch.cat(
            [middle, torch.tensor([-1e3, -1e2, 1e2, 1e3], dtype=torch.float64)]
        ).requires_grad_()
        try:
            (slopes,) = torch.autograd.grad(act(x).sum(), x)
        except (RuntimeError, TypeError) as error:
            raise EigenlensError(
                f"the slope of the activation {act} is not known: {error}"
            ) from error
    near, far = float(slopes[:-4].abs().max()), float(slopes[-4:].abs().max())
    if not far <= near:
        raise EigenlensError(
            f"the bound holds for activations of bounded slope, and {act} grows steeper without end"
        )
    return math.ceil(100 * near - 1e-9) / 100


def _largest(A: Tensor) -> Tensor:
    """Return the largest singular value of (…, M, N), from the smaller Gram matrix.

    A full decomposition would cost ten times as much.
    """
    A = A.double()
    gram = A @ A.mT if A.shape[-2] <= A.shape[-1] else A.mT @ A
    return torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0).sqrt()


def _largest_of_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the largest singular value of `left (C, E) @ right (E, C)`, from an E × C matrix."""
    return _largest(torch.linalg.qr(left.double()).R @ right.double())


def _largest_of_pattern(A: Tensor) -> Tensor:
    """Return the largest singular value of (b, H, T, T).

    Beyond `EXACT` tokens it is a lower estimate from 8 vectors and 12 powers of AᵀA.
    """
    T = A.shape[-1]
    if T <= EXACT:
        return _largest(A)
    draw = torch.Generator().manual_seed(0)
    Y = torch.randn(T, 8, generator=draw, dtype=torch.float64).to(A).expand(*A.shape[:-2], T, 8)
    for _ in range(12):
        Y = torch.linalg.qr(A.mT @ (A @ Y)).Q
    return torch.linalg.svdvals(A @ Y)[..., 0]
