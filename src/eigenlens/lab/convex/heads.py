"""Heads and the matrix they add up to.

Heads from the singular vectors of Z, and a block with m heads trained by gradients.

`Z_p = Σ_j σ_j u_j v_jᵀ` gives the heads `W_1j = √σ_j mat(u_j)`, `W_2j = √σ_j mat(v_j)`. Both have
the norm √σ_j, so that their penalty `β/2 Σ_j(‖W_1j‖² + ‖W_2j‖²)` is `β Σ_j σ_j = β‖Z‖_*`, the least
of all ways to write Z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...display import numbered
from ...errors import EigenlensError
from ...run.progress import Progress, silent
from .problem import ConvexBlock, Problem


@dataclass(frozen=True, eq=False)
class ConvexHeads:
    """W_1 (m, *left), W_2 (m, *right), and the group that each head belongs to, (m,)."""

    W1: Tensor
    W2: Tensor
    gate: Tensor

    def __len__(self) -> int:
        return len(self.gate)

    @property
    def penalty(self) -> Tensor:
        """The penalty of both layers, `½ Σ_j(‖W_1j‖² + ‖W_2j‖²)`."""
        return 0.5 * (self.W1.square().sum() + self.W2.square().sum())

    def rows(self) -> list[dict[str, float]]:
        norms = self.W1.flatten(1).norm(dim=1), self.W2.flatten(1).norm(dim=1)
        return [
            {"head": j, "gate": int(p), "‖W_1‖": float(a), "‖W_2‖": float(b)}
            for j, (p, a, b) in enumerate(zip(self.gate, *norms))
        ]


def heads_from_matrix(block: ConvexBlock, Z: Tensor, share: float = 1e-9) -> ConvexHeads:
    """The heads of Z (P, rows, columns), largest first within a gate.

    Singular values below `share` of the largest count as 0.
    """
    if tuple(Z.shape) != block.shape:
        raise EigenlensError(f"Z of {block.name} is {block.shape}, not {tuple(Z.shape)}")
    U, S, Vh = torch.linalg.svd(Z, full_matrices=False)
    gate, which = torch.nonzero(share * S.max() < S, as_tuple=True)
    root = S[gate, which].sqrt()[:, None]
    W1, W2 = root * U[gate, :, which], root * Vh[gate, which]
    return ConvexHeads(W1.view(-1, *block.left), W2.view(-1, *block.right), gate)


def matrix_of(block: ConvexBlock, heads: ConvexHeads) -> Tensor:
    """`Z_p = Σ_{j in p} vec(W_1j) vec(W_2j)ᵀ`, (P, rows, columns)."""
    Z = heads.W1.new_zeros(block.shape)
    return Z.index_add(
        0, heads.gate, heads.W1.flatten(1)[:, :, None] * heads.W2.flatten(1)[:, None]
    )


@dataclass(frozen=True, eq=False)
class TrainedHeads:
    """What gradient training of m heads found.

    That is its `objective`, the norm of the `gradient`, and how often it was computed.
    """

    heads: ConvexHeads
    objective: float
    gradient: float
    evaluations: int


def train_heads(
    problem: Problem,
    beta: float,
    m: int,
    *,
    seed: int = 0,
    size: float = 0.5,
    most: int = 20_000,
    progress: Progress = silent,
) -> TrainedHeads:
    """`min F(block with m heads) + β/2 Σ_j(‖W_1j‖² + ‖W_2j‖²)` by L-BFGS.

    It starts from normal heads of `size`, in double precision.

    Heads take the gates in turn. With m ≥ `problem.block.heads` the least it can find is the
    optimum of the convex problem.
    """
    from scipy.optimize import minimize

    block = problem.block
    if m < 1 or not beta > 0:
        raise EigenlensError(f"train at least 1 head with a penalty above 0; got {m} and {beta}")
    if block.X.dtype != torch.float64:
        raise EigenlensError(
            f"heads are trained in double precision; the inputs are {block.X.dtype}: use"
            " inputs.double()"
        )
    shapes = ((m, *block.left), (m, *block.right))
    cut = int(np.prod(shapes[0]))
    gate = torch.arange(m, device=block.X.device) % block.groups
    rng = np.random.default_rng(seed)
    evaluations = 0

    def heads_at(x: np.ndarray) -> ConvexHeads:
        flat = torch.from_numpy(x).to(block.X)
        return ConvexHeads(
            flat[:cut].view(shapes[0]).clone(), flat[cut:].view(shapes[1]).clone(), gate
        )

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal evaluations
        heads = heads_at(x)
        with torch.enable_grad():
            leaves = heads.W1.requires_grad_(), heads.W2.requires_grad_()
            value = (
                problem.loss.value(problem.pool(block.attend(*leaves, gate))) + beta * heads.penalty
            )
            slopes = torch.autograd.grad(value, leaves)
        if evaluations % 100 == 0:
            progress(f"training {numbered(m, 'head')}", min(evaluations, most), most)
        evaluations += 1
        return float(value.detach()), torch.cat([slope.flatten() for slope in slopes]).cpu().numpy()

    start = size * rng.standard_normal(cut + int(np.prod(shapes[1])))
    # It ends where rounding lets no line search go lower, which is nearer than any tolerance.
    settings = {"maxiter": most, "maxfun": most, "maxcor": 40, "ftol": 0.0, "gtol": 1e-9}
    done = minimize(objective, start, jac=True, method="L-BFGS-B", options=settings)
    return TrainedHeads(
        heads_at(done.x), float(done.fun), float(np.linalg.norm(done.jac)), evaluations
    )
