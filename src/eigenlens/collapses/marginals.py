"""What every single head adds to the output, over paths of each length.

Forward, X_j holds the sum of all paths of length j up to a layer; backward, G_m the sum of all
paths of length m from there to a direction Y of the output. A head stands between the two: over
paths of length k it adds `Σ_{j+m+1=k} ⟨G_m, A_h X_j⟩`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..anatomy.frozen import FrozenBranch, FrozenStack, FrozenStage
from ..errors import EigenlensError
from .paths import through


@torch.no_grad()
def head_marginals(frozen: FrozenStack) -> Tensor:
    """What the paths of length k through head h of layer l add to the output, (L, H, L+1).

    It is the mean over inputs of `Σ ⟨path, Y⟩ / ‖Y‖²`; Y is the model's own output. Over all heads,
    length k adds up to k times its share of the output. Cost: about four times that of
    `decompose_paths`.
    """
    heads = frozen.heads
    if len(set(heads)) > 1:
        raise EigenlensError(
            "the shares of single heads need the same number of heads in every layer"
        )
    stages, grids = list(frozen.stages()), []
    grid, bias = frozen.inputs[None, None], torch.zeros_like(frozen.inputs)
    for stage in stages:
        grids.append(grid[:, 0])
        grid, bias = through(stage, grid, bias, "attention")
    found = grid.new_zeros(len(heads), heads[0], len(heads) + 1, dtype=torch.float64)
    back = _direction(frozen)[None]  # (m, B, T, C)
    layer = len(heads)
    for stage, terms in zip(reversed(stages), reversed(grids)):
        if stage.after is not None:
            back = stage.after.adjoint(back)
        for branch in stage.branches:
            if branch.kind == "attention":
                layer -= 1
                products = _products(branch, terms, back)  # (H, j, m)
                for j in range(products.shape[1]):
                    found[layer, :, j + 1 : j + 1 + products.shape[2]] += products[:, j]
        back = _backward(stage, back)
    return found


def _direction(frozen: FrozenStack) -> Tensor:
    """The direction `Y / (B ‖Y‖²)` of every input, at the end of the last block, (B, T, C)."""
    y = frozen.output if frozen.valid is None else frozen.output * frozen.valid[..., None]
    y = y / (len(y) * y.square().sum((1, 2), keepdim=True).clamp_min(torch.finfo(y.dtype).tiny))
    return y if frozen.final is None else frozen.final.adjoint(y)


def _products(branch: FrozenBranch, terms: Tensor, back: Tensor) -> Tensor:
    """The products `⟨G_m, A_h X_j⟩` for every head, j and m, summed over inputs, (H, j, m)."""
    before, attention, behind = branch.around_attention()
    for part in before:
        terms = part.linear(terms)
    for part in reversed(behind):
        back = part.adjoint(back)
    z, g = attention.mixed(terms), attention.read_back(back)  # (j, B, H, T, E), (m, B, H, T, E)
    return torch.einsum("jbhte,mbhte->hjm", z.double(), g.double())


def _backward(stage: FrozenStage, back: Tensor) -> Tensor:
    """The adjoint of a stage without its norm, with a hop more: (m, B, T, C) → (m', B, T, C)."""
    total = back if stage.keeps else torch.zeros_like(back)
    total = torch.cat([total, torch.zeros_like(total[:1])]) if stage.attends else total
    for branch in stage.branches:
        if branch.kind == "attention":
            total[1:] += branch.adjoint(back)
        elif branch.kind == "mlp":
            total[: len(back)] = total[: len(back)] + branch.adjoint(back)
    return total
