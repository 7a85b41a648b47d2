"""Blocks on drawn data: the identity, the certificate, and training with few heads and enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...lab.convex import (
    ConvexBlock,
    FourierOperator,
    GatedAttention,
    LinearAttention,
    LinearMixer,
    Logistic,
    Problem,
    Squared,
    certificate,
    heads_from_matrix,
    matrix_of,
    solve,
    train_heads,
)

if TYPE_CHECKING:
    from . import Scale

GATES = 3
STEPS = 100_000


def random_problem(scale: Scale, seed: int) -> Problem:
    """Normal tokens of mean squared norm 1, and what linear attention makes of them.

    That attention has `teachers` normal heads.
    """
    source = torch.Generator().manual_seed(seed)
    X = _normal(source, scale.n, scale.s, scale.d) / scale.d**0.5
    W1, W2 = (
        _normal(source, scale.teachers, scale.d, scale.d),
        _normal(source, scale.teachers, scale.d, scale.c),
    )
    block = LinearAttention(X, scale.c)
    return Problem(
        block, Squared(block.attend(W1, W2, torch.zeros(scale.teachers, dtype=torch.long)))
    )


def _normal(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def block_run(name: str, loss: str, scale: Scale, seed: int) -> dict[str, Any]:
    """One block with one loss on normal data: identity, certificate, training with enough heads.

    β is a tenth of the largest.
    """
    source = torch.Generator().manual_seed(seed)
    X = _normal(source, scale.n, scale.s, scale.d) / scale.d**0.5
    H, Y = _normal(source, GATES, scale.d, scale.d), _normal(source, scale.n, scale.s, scale.c)
    labels = torch.randint(scale.c, (scale.n, 1), generator=source)
    block: ConvexBlock = {
        "linear attention": lambda: LinearAttention(X, scale.c),
        "gated-ReLU attention": lambda: GatedAttention(X, scale.c, H),
        "linear mixer": lambda: LinearMixer(X, scale.c),
        "Fourier operator": lambda: FourierOperator(X, scale.c),
    }[name]()
    problem = (
        Problem(block, Squared(Y))
        if loss == "squared"
        else Problem(block, Logistic(labels, scale.c), pooled=True)
    )
    beta = 0.1 * problem.beta_max()
    found = solve(problem, beta, most=STEPS)
    apart = []
    for Z in (found.Z, _normal(source, *block.shape)):  # the optimum, and one of full rank
        heads, out = heads_from_matrix(block, Z), block.apply(Z)
        apart.append(
            float(
                (block.attend(heads.W1, heads.W2, heads.gate) - out).abs().max() / out.abs().max()
            )
        )
    trained = [
        train_heads(problem, beta, block.heads, seed=start).objective
        for start in range(scale.starts)
    ]
    row = {
        "block": name,
        "loss": loss,
        "Z": " × ".join(map(str, block.shape[1:])),
        "gates": block.groups,
        "β": beta,
        "optimum": found.objective,
        "heads": found.rank,
        "enough": block.heads,
        "steps": found.steps,
        "gap": found.gap,
        "excess": found.excess,
        "identity": max(apart),
        "trained off": max((value / found.objective - 1 for value in trained), key=abs),
    }
    history = [
        {"block": f"{name}, {loss}", "step": r["step"], "gap": r["gap"]}
        for r in found.rows()
        if r["gap"] < 1e300
    ]
    return {"row": row, "history": history}


def head_runs(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """Training with each number of heads from each start: distance to the optimum, certificates."""
    problem = random_problem(scale, seed)
    found = solve(problem, scale.beta, most=STEPS)
    rows = []
    for m in scale.heads:
        for start in range(scale.starts):
            trained = train_heads(problem, scale.beta, m, seed=1000 * seed + start)
            own = certificate(problem, scale.beta, matrix_of(problem.block, trained.heads))
            rows.append(
                {
                    "set": seed,
                    "heads": m,
                    "start": start,
                    "optimum": found.objective,
                    "gap": found.gap,
                    "rank": found.rank,
                    "off": trained.objective / found.objective - 1,
                    "excess": own["excess"],
                    "slack": own["slack"],
                    "gradient": trained.gradient,
                    "evaluations": trained.evaluations,
                }
            )
    return rows


def path_rows(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """The optimum along β, as a share of the β from which Z = 0 is the optimum."""
    problem = random_problem(scale, seed)
    most, start, rows = problem.beta_max(), None, []
    for share in (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002):
        found = solve(problem, share * most, most=STEPS, start=start)
        start = found.Z
        loss = float(problem.loss.value(problem.apply(found.Z)))
        rows.append(
            {
                "β / β_max": share,
                "β": share * most,
                "heads": found.rank,
                "optimum": found.objective,
                "loss": loss,
                "gap": found.gap,
                "steps": found.steps,
            }
        )
    return rows


def counterexample(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """The Z of least squares alone, whose gradient is 0.

    There (‖∇F‖/β − 1)₊ is 0 too, and yet Z is no optimum of the problem with a penalty.
    """
    problem = random_problem(scale, seed)
    units = torch.eye(problem.block.shape[1] * problem.block.shape[2], dtype=torch.float64)
    A = torch.stack([problem.apply(one.view(problem.block.shape)).flatten() for one in units], 1)
    # of the squared loss: Y itself
    target = -problem.loss.gradient(torch.zeros(problem.loss.shape, dtype=torch.float64))
    fitted = (torch.linalg.pinv(A) @ target.flatten()).view(problem.block.shape)
    beta = 0.1 * problem.beta_max()
    found = solve(problem, beta, most=STEPS)
    now = certificate(problem, beta, fitted, bound=found.bound)
    return [
        {
            "β": beta,
            "objective": now["objective"],
            "optimum": found.objective,
            "off": now["objective"] / found.objective - 1,
            "excess": now["excess"],
            "slack": now["slack"],
            "duality gap": now["gap"],
        }
    ]
