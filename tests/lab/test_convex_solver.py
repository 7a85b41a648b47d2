"""The solver: against closed forms, plain proximal gradients on dense features, and scipy.

Its certificate holds everywhere.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

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
    solve,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problems(n=12, s=4, d=3, c=2):
    X, H, Y = normal(n, s, d, seed=1) / d**0.5, normal(3, d, d, seed=2), normal(n, s, c, seed=3)
    labels = torch.randint(c, (n, s), generator=torch.Generator().manual_seed(4))
    blocks = (
        LinearAttention(X, c),
        GatedAttention(X, c, H),
        LinearMixer(X, c),
        FourierOperator(X, c),
    )
    for block in blocks:
        yield Problem(block, Squared(Y))
        yield Problem(block, Logistic(labels, c))
        yield Problem(block, Logistic(labels[:, :1], c), pooled=True)


PROBLEMS = list(problems())


def shrunk(Z, by):
    U, S, Vh = np.linalg.svd(Z, full_matrices=False)
    return (U * np.maximum(S - by, 0)) @ Vh


def dense(problem):
    """The map as a matrix, by the entries of Z one after the other."""
    shape = problem.block.shape
    units = torch.eye(int(np.prod(shape)), dtype=torch.float64)
    return torch.stack([problem.apply(one.view(shape)).flatten() for one in units], 1).numpy()


@pytest.mark.parametrize(
    "problem",
    PROBLEMS,
    ids=lambda p: f"{p.block.name}-{type(p.loss).__name__}{'-pooled' * p.pooled}",
)
def test_the_certificate_is_reached_and_a_plain_solver_on_dense_features_agrees(problem):
    """Singular-value thresholding without momentum, on the dense matrix of the map, with F's
    gradient by autograd.
    """
    beta = 0.2 * problem.beta_max()
    found = solve(problem, beta, tolerance=1e-7)
    assert found.certified and found.gap < 1e-6
    A, shape, Z = (
        torch.from_numpy(dense(problem)),
        problem.block.shape,
        np.zeros(problem.block.shape),
    )
    L = np.linalg.norm(A.numpy(), 2) ** 2 * (1 if isinstance(problem.loss, Squared) else 0.5)
    best = np.inf
    for _ in range(1000):
        z = torch.tensor(Z.ravel(), requires_grad=True)
        out = (A @ z).view(problem.loss.shape)
        if isinstance(problem.loss, Squared):
            value = ((out - problem.loss.Y) ** 2).sum() / 2
        else:
            value = torch.nn.functional.cross_entropy(
                out.flatten(0, 1), problem.loss.labels.flatten(), reduction="sum"
            )
        nuclear = sum(np.linalg.svd(one, compute_uv=False).sum() for one in Z)
        best = min(best, value.item() + beta * nuclear)
        g = torch.autograd.grad(value, z)[0].numpy().reshape(shape)
        Z = np.stack([shrunk(one, beta / L) for one in Z - g / L])
    assert found.bound <= best * (1 + 1e-12)
    assert found.objective == pytest.approx(best, rel=1e-5)


def test_orthonormal_features_have_a_closed_form():
    """A mixer whose samples are an orthonormal basis.

    The optimum is A*Y with its singular values less β.
    """
    s, d, c = 3, 2, 3
    X = torch.linalg.qr(normal(s * d, s * d))[0].view(s * d, s, d)
    problem = Problem(LinearMixer(X, c), Squared(normal(s * d, s, c, seed=1)))
    expected = shrunk(problem.adjoint(problem.loss.Y)[0].numpy(), 2.0)
    assert np.linalg.matrix_rank(expected) < 6  # something is cut off
    found = solve(problem, 2.0, tolerance=1e-12)
    np.testing.assert_allclose(found.Z[0].numpy(), expected, atol=1e-9)
    # Two inputs that are a one at a token, circ(X) = a shift: A*A = 2 I.
    X = torch.zeros(2, 4, 1, dtype=torch.float64)
    X[0, 0], X[1, 2] = 1, 1
    Y = normal(2, 4, 3, seed=2)
    mean = (Y[0] + Y[1].roll(-2, 0)) / 2
    found = solve(Problem(FourierOperator(X, 3), Squared(Y)), 0.8, tolerance=1e-12)
    np.testing.assert_allclose(found.Z[0].numpy(), shrunk(mean.numpy(), 0.4), atol=1e-9)


def test_scipy_on_two_factors_finds_the_same_optimum():
    """‖Z‖_* = min ½(‖U‖² + ‖V‖²) over Z = UVᵀ; dense features in numpy, gradients by hand."""
    problem = PROBLEMS[0]
    A, Y, (_, rows, columns) = dense(problem), problem.loss.Y.numpy().ravel(), problem.block.shape
    r, beta = min(rows, columns), 0.1 * problem.beta_max()

    def value(x):
        U, V = x[: rows * r].reshape(rows, r), x[rows * r :].reshape(columns, r)
        off = A @ (U @ V.T).ravel() - Y
        g = (A.T @ off).reshape(rows, columns)
        return off @ off / 2 + beta / 2 * (x @ x), np.concatenate(
            [(g @ V + beta * U).ravel(), (g.T @ U + beta * V).ravel()]
        )

    start = np.random.default_rng(0).standard_normal((rows + columns) * r)
    done = minimize(
        value,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 9000, "ftol": 0, "gtol": 1e-10},
    )
    assert solve(problem, beta, tolerance=1e-8).objective == pytest.approx(done.fun, rel=1e-8)


def test_the_duality_gap_is_a_bound_at_any_z_and_the_simple_form_is_not():
    """Where the loss is least, far from the optimum, the gradient is 0: (‖∇F‖/β − 1)₊ says that
    nothing is wrong.
    """
    for problem in PROBLEMS[:2]:
        beta = 0.3 * problem.beta_max()
        least = solve(problem, beta, tolerance=1e-9).objective
        for seed in range(20):
            Z = normal(*problem.block.shape, seed=seed) * 10.0 ** (seed % 5 - 3)
            now = certificate(problem, beta, Z)
            assert (
                now["bound"] <= least * (1 + 1e-12)
                and now["gap"] >= now["objective"] / least - 1 - 1e-9
            )
            # with its second term it is one
            assert now["objective"] / least - 1 <= now["excess"] + now["slack"] + 1e-9
    squared = PROBLEMS[0]
    fitted = np.linalg.lstsq(dense(squared), squared.loss.Y.numpy().ravel(), rcond=None)[0]
    now = certificate(
        squared,
        beta := 0.3 * squared.beta_max(),
        torch.from_numpy(fitted).view(squared.block.shape),
    )
    assert (
        now["excess"] == 0
        and now["objective"] > 1.5 * solve(squared, beta).objective
        and now["gap"] > 0.5
    )


def test_from_beta_max_on_nothing_is_learned():
    for problem in PROBLEMS:
        most = problem.beta_max()
        assert solve(problem, 1.001 * most).rank == 0
        assert solve(problem, 0.9 * most).rank > 0


def test_a_target_of_zero_is_met_by_zero():
    block = PROBLEMS[0].block
    found = solve(
        Problem(block, Squared(torch.zeros(block.n, block.s, block.c, dtype=torch.float64))), 1.0
    )
    assert found.objective == 0 and found.gap == 0 and found.rank == 0 and not bool(found.Z.any())
    # no input, a target that cannot be met
    silent = LinearAttention(torch.zeros(2, 3, 2, dtype=torch.float64), 1)
    found = solve(Problem(silent, Squared(torch.ones(2, 3, 1, dtype=torch.float64))), 1.0)
    assert found.objective == 3 and found.certified and bool(found.Z.isfinite().all())


def test_a_start_near_the_optimum_is_used_and_left_as_it_is():
    problem = PROBLEMS[0]
    beta = 0.1 * problem.beta_max()
    first = solve(problem, beta)
    given = first.Z.clone()
    again = solve(problem, beta, start=first.Z)
    assert again.steps == 0 and torch.equal(first.Z, given) and again.Z is not first.Z
    assert solve(problem, 0.9 * beta, start=first.Z).objective < first.objective


def test_the_callback_hears_of_every_measured_step_and_may_end_the_run():
    problem, calls = PROBLEMS[0], []
    beta, start = 0.05 * problem.beta_max(), normal(*PROBLEMS[0].block.shape)
    kept = start.clone()
    whole = solve(problem, beta, progress=lambda *call: calls.append(call))
    assert [done for _, done, _ in calls] == [row["step"] for row in whole.rows()] and {
        total for *_, total in calls
    } == {20_000}
    assert {what for what, *_ in calls} == {"solving the convex problem"}
    assert (whole.rows()[-1]["objective"], whole.rows()[-1]["gap"]) == (whole.objective, whole.gap)

    def enough(_what, done, _total):
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(problem, beta, progress=enough, start=start)
    assert torch.equal(start, kept) and torch.is_grad_enabled()
    assert solve(problem, beta).objective == whole.objective


def test_a_run_that_is_too_short_says_so():
    problem = PROBLEMS[0]
    short = solve(problem, 0.01 * problem.beta_max(), most=15)
    assert short.steps == 15 and not short.certified and "not certified" in short.sentence
    full = solve(problem, 0.1 * problem.beta_max())
    assert "no solution is better" in full.sentence and f"of {full.heads}" in full.sentence
    assert {"step", "objective", "bound", "gap", "excess", "slack", "rank"} == set(full.rows()[0])
    assert full.plot().to_dict()["hconcat"] and "<svg" in full._repr_html_()


def test_single_precision_inputs_stay_single():
    problem = PROBLEMS[0]
    single = Problem(LinearAttention(problem.block.X.float(), 2), Squared(problem.loss.Y))
    found = solve(single, 0.2 * problem.beta_max(), tolerance=1e-4)
    assert found.Z.dtype == torch.float32 and found.certified


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"beta": 0}, "above 0, not 0"),
        ({"beta": -1.5}, "not -1.5"),
        ({"beta": float("nan")}, "not nan"),
        ({"beta": 1, "tolerance": 0}, "tolerance"),
        ({"beta": 1, "most": 0}, "at least 1 step"),
        ({"beta": 1, "start": torch.zeros(2, 2)}, r"the shape of Z, \(1, 9, 6\), not \(2, 2\)"),
    ],
)
def test_bad_requests_are_told(asked, says):
    with pytest.raises(EigenlensError, match=says):
        solve(PROBLEMS[0], **asked)
