"""The convex problem solved.

FISTA with singular-value thresholding, and a certificate of how near the optimum it is.

`min_Z P(Z) = F(AZ) + β Σ_p ‖Z_p‖_*`. With `Ω°(g) = max_p ‖g_p‖₂`, the dual problem is `max_v
−F*(v)` subject to `Ω°(A*v) ≤ β`. Any v is made feasible by shrinking it, so at every Z, with `v =
∇F(AZ)` and `g = A*v`,

    P(Z) − min P ≤ P(Z) + F*(v · min(1, β/Ω°(g))),

which needs nothing of Z and is what stops the solver, over its own lower bound of min P.

`(Ω°(g)/β − 1)₊` is simpler and holds less. As F is convex, `min P ≥ F(AZ) + ⟨g, Z* − Z⟩ + β‖Z*‖_*`,
and `⟨g, Z*⟩ ≥ −Ω°(g)‖Z*‖_*`, `β‖Z*‖_* ≤ min P` since F ≥ 0. So

    (P(Z) − min P)/min P ≤ (Ω°(g)/β − 1)₊ + (β‖Z‖_* + ⟨g, Z⟩)/min P.

The last term is 0 where Z is stationary along its own ray, in particular at every stationary point
of the block with heads (there `⟨∇_{W_1j}, W_1j⟩ = −β‖W_1j‖²`), and only there is the first a bound
by itself. Both are reported.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import EigenlensError
from ...run.progress import Progress, silent
from .problem import Problem, check_fits
from .solution import Solution

EVERY = 10
"""Steps between two certificates.

A certificate costs one product with the transpose and one set of singular values.
"""


def solve(
    problem: Problem,
    beta: float,
    *,
    tolerance: float = 1e-6,
    most: int = 20_000,
    progress: Progress = silent,
    start: Tensor | None = None,
    gigabytes: float = 2.0,
) -> Solution:
    """The optimum of `F(AZ) + β Σ_p ‖Z_p‖_*`.

    It is found up to a relative duality gap of `tolerance`, or is the best after `most` steps.

    Z has `problem.block.shape`, (1, d², dc) for attention. `start` is left as it is.
    `progress(what, done, total)` is called at every tenth step; an exception that it raises ends
    the run. `gigabytes` is the most to hold.
    """
    if not (math.isfinite(beta) and beta > 0):
        raise EigenlensError(f"the penalty β is a number above 0, not {beta}")
    if not tolerance > 0 or most < 1:
        raise EigenlensError(
            f"the tolerance is above 0 and there is at least 1 step; got {tolerance} and {most}"
        )
    check_fits(problem, gigabytes)
    shape, X = problem.block.shape, problem.block.X
    if start is not None and tuple(start.shape) != shape:
        raise EigenlensError(f"a start has the shape of Z, {shape}, not {tuple(start.shape)}")
    with torch.no_grad():
        Z = X.new_zeros(shape) if start is None else start.detach().to(X).clone()
        return _fista(problem, float(beta), Z, tolerance, most, progress)


def _fista(
    problem: Problem, beta: float, Z: Tensor, tolerance: float, most: int, progress: Progress
) -> Solution:
    loss = problem.loss
    L = max(loss.smoothness * squared_norm(problem), torch.finfo(Z.dtype).tiny)
    AZ = problem.apply(Z)
    best, history = -math.inf, []
    Y, AY, t = Z, AZ, 1.0  # the point ahead, at which the gradient is taken
    for step in range(most + 1):
        if step % EVERY == 0 or step == most:
            now = certificate(problem, beta, Z, AZ, best)
            best = now["bound"]
            history.append({"step": step, **now})
            progress("solving the convex problem", step, most)
            if now["gap"] <= tolerance or step == most:
                break
        g = problem.adjoint(loss.gradient(AY))
        while True:
            new = threshold(Y - g / L, beta / L)
            Anew = problem.apply(new)
            # F is smooth in the outputs, so this asks no difference of two nearly equal losses.
            ahead, moved = (
                loss.smoothness * float((Anew - AY).square().sum()),
                float((new - Y).square().sum()),
            )
            if ahead <= L * moved * (1 + 1e-9) or not moved > 0:
                break
            L = max(1.1 * L, ahead / moved)
        if float(((Y - new) * (new - Z)).sum()) > 0:  # it goes up hill: begin anew without momentum
            t = 1.0
        following = 0.5 * (1 + math.sqrt(1 + 4 * t * t))
        momentum = (t - 1) / following
        Y, AY, t = new + momentum * (new - Z), Anew + momentum * (Anew - AZ), following
        Z, AZ = new, Anew
    if not math.isfinite(history[-1]["objective"]):
        raise EigenlensError(
            "the objective is not finite; scale the inputs so that their products stay in range"
        )
    return Solution(Z, beta, tolerance, problem.block.name, problem.block.heads, tuple(history))


def certificate(
    problem: Problem, beta: float, Z: Tensor, out: Tensor | None = None, bound: float = -math.inf
) -> dict[str, float]:
    """How near Z is to the optimum.

    `objective`, the lower `bound` of the optimum (no less than one that is given), the relative
    duality `gap` between them, `excess` (Ω°(g)/β − 1)₊, `slack` (β‖Z‖_* + ⟨g,Z⟩)/bound, and `rank`.
    """
    out = problem.apply(Z) if out is None else out
    v = problem.loss.gradient(out)
    g = problem.adjoint(v)
    sizes = torch.linalg.svdvals(Z)  # (P, r)
    nuclear = float(sizes.sum())
    objective = float(problem.loss.value(out)) + beta * nuclear
    ratio = float(torch.linalg.matrix_norm(g, ord=2).max()) / beta
    bound = max(bound, -float(problem.loss.conjugate(v / max(ratio, 1.0))))
    slack = max(beta * nuclear + float((g * Z).sum()), 0.0)
    return {
        "objective": objective,
        "bound": bound,
        "gap": _share(max(objective - bound, 0.0), bound),
        "excess": max(ratio - 1, 0.0),
        "slack": _share(slack, bound),
        "rank": rank_of(sizes),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else (0.0 if part == 0 else math.inf)


def rank_of(sizes: Tensor) -> int:
    """How many singular values (P, r) are above 1e-9 of the largest."""
    return int((sizes > 1e-9 * sizes.max()).sum())


def threshold(Z: Tensor, by: float) -> Tensor:
    """Singular values (of each of P matrices) less `by`, at least 0.

    The proximal map of `by · ‖·‖_*`.
    """
    U, S, Vh = torch.linalg.svd(Z, full_matrices=False)
    return (U * (S - by).clamp(min=0)[:, None]) @ Vh


def squared_norm(problem: Problem, steps: int = 30) -> float:
    """`‖A‖²` by power iteration from a fixed start.

    The estimate comes from below, so the solver still checks every step.
    """
    source = torch.Generator().manual_seed(0)
    z = torch.randn(problem.block.shape, generator=source, dtype=torch.float64).to(problem.block.X)
    found = 0.0
    for _ in range(steps):
        z = problem.adjoint(problem.apply(z / z.norm()))
        found = float(z.norm())
        if not found > 0:
            break
    return found
