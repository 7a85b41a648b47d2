"""Blocks with heads trained by gradients.

With enough heads they land on the optimum of the convex problem, with one they do not.
"""

import pytest
import torch

from eigenlens.errors import EigenlensError
from eigenlens.lab.convex import (
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


def drawn(seed, n=24, s=5, d=3, c=2, teachers=2):
    """Tokens of mean squared norm 1, and what a block of two heads makes of them."""
    source = torch.Generator().manual_seed(seed)
    X = torch.randn(n, s, d, generator=source, dtype=torch.float64) / d**0.5
    block = LinearAttention(X, c)
    W1 = torch.randn(teachers, d, d, generator=source, dtype=torch.float64)
    W2 = torch.randn(teachers, d, c, generator=source, dtype=torch.float64)
    return Problem(block, Squared(sum(X @ a @ X.mT @ X @ b for a, b in zip(W1, W2))))


@pytest.fixture(scope="module")
def solved():
    problem = drawn(1)
    return problem, solve(problem, 0.5)


def test_the_optimum_is_certified_and_its_heads_have_its_objective(solved):
    problem, found = solved
    assert found.gap < 1e-6
    heads = heads_from_matrix(problem.block, found.Z)
    assert len(heads) == found.rank <= 6
    out = problem.block.attend(heads.W1, heads.W2, heads.gate)
    objective = 0.5 * (out - problem.loss.Y).square().sum() + 0.25 * (
        heads.W1.square().sum() + heads.W2.square().sum()
    )
    assert float(objective) == pytest.approx(found.objective, rel=1e-9)


@pytest.mark.slow
def test_training_with_enough_heads_lands_on_the_optimum_from_every_start(solved):
    problem, found = solved
    for seed in range(3):
        trained = train_heads(problem, 0.5, 6, seed=seed)
        assert abs(trained.objective / found.objective - 1) < 1e-6
        assert trained.objective >= found.bound * (1 - 1e-12)
        own = certificate(problem, 0.5, matrix_of(problem.block, trained.heads))
        assert own["gap"] < 1e-3  # what was trained is certified, too


def test_one_head_is_strictly_worse_and_the_simple_certificate_bounds_its_gap(solved):
    problem, found = solved
    for m, seeds in ((1, 4), (2, 2)):
        for seed in range(seeds):
            trained = train_heads(problem, 0.5, m, seed=seed)
            off = trained.objective / found.objective - 1
            assert off > (1 if m == 1 else 1e-4)
            own = certificate(problem, 0.5, matrix_of(problem.block, trained.heads))
            # stationary, so the first term alone is a bound
            assert own["excess"] >= off and own["slack"] < 1e-3


@pytest.mark.parametrize("kind", ["gated", "mixer", "fourier", "logistic"])
def test_the_other_blocks_too(kind):
    source = torch.Generator().manual_seed(5)
    X = torch.randn(10, 3, 2, generator=source, dtype=torch.float64)
    Y = torch.randn(10, 3, 2, generator=source, dtype=torch.float64)
    labels = torch.randint(2, (10, 1), generator=source)
    H = torch.randn(2, 2, 2, generator=source, dtype=torch.float64)
    block = {
        "gated": lambda: GatedAttention(X, 2, H),
        "mixer": lambda: LinearMixer(X, 2),
        "fourier": lambda: FourierOperator(X, 2),
    }
    made = block.get(kind, lambda: LinearAttention(X, 2))()
    problem = (
        Problem(made, Logistic(labels, 2), pooled=True)
        if kind == "logistic"
        else Problem(made, Squared(Y))
    )
    beta = 0.2 * problem.beta_max()
    found = solve(problem, beta, tolerance=1e-8)
    calls = []
    trained = train_heads(
        problem, beta, made.heads, seed=1, progress=lambda *call: calls.append(call)
    )
    assert abs(trained.objective / found.objective - 1) < 1e-6 and calls[0][1] == 0
    assert {what for what, *_ in calls} == {f"training {made.heads} head{'s' * (made.heads > 1)}"}


def test_bad_requests_are_told(solved):
    with pytest.raises(EigenlensError, match=r"got 0 and 0\.5"):
        train_heads(solved[0], 0.5, 0)
    single = Problem(LinearAttention(torch.ones(2, 2, 2), 1), Squared(torch.ones(2, 2, 1)))
    with pytest.raises(EigenlensError, match="double precision"):
        train_heads(single, 0.5, 1)
