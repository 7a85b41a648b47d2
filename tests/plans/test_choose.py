"""The choice of candidates, against enumeration."""

import itertools

import numpy as np
import pytest

from eigenlens.plans.choose import within_budget, within_error


def problem(seed, candidates=5, heads=4):
    rng = np.random.default_rng(seed)
    work = np.sort(rng.random((candidates, heads)), 0)
    errors = np.sort(rng.random((candidates, heads)), 0)[::-1].copy()
    work[0], work[-1], errors[-1] = 0.0, 1.0, 0.0  # nothing, and exact
    return errors, work


def best_by_enumeration(errors, work, budget):
    heads = np.arange(errors.shape[1])
    found = [np.array(c) for c in itertools.product(range(len(errors)), repeat=len(heads))]
    return min(
        (errors[c, heads].sum() for c in found if work[c, heads].mean() <= budget + 1e-12),
        default=np.inf,
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("budget", [0.1, 0.3, 0.6, 1.0])
def test_a_budget_is_kept_and_nearly_nothing_better_exists(seed, budget):
    errors, work = problem(seed)
    heads = np.arange(4)
    chosen = within_budget(errors, work, budget)
    assert work[chosen, heads].mean() <= budget + 1e-12
    best = best_by_enumeration(errors, work, budget)
    # at most one step off
    assert errors[chosen, heads].sum() <= best + np.abs(np.diff(errors, axis=0)).max()


def test_a_budget_for_everything_is_exact():
    errors, work = problem(1)
    assert errors[within_budget(errors, work, 1.0), np.arange(4)].sum() == 0


def test_it_is_spent_where_it_buys_most():
    errors = np.array([[0.9, 0.1], [0.0, 0.0]])
    work = np.array([[0.0, 0.0], [1.0, 1.0]])
    assert within_budget(errors, work, 0.5).tolist() == [1, 0]


def test_a_candidate_that_cannot_serve_is_never_chosen():
    errors, work = problem(3)
    errors[1], work[1] = np.inf, np.inf
    for budget in (0.05, 0.4, 1.0):
        assert 1 not in within_budget(errors, work, budget)
    assert 1 not in within_error(errors, work, 0.3)


def test_a_budget_below_everything_takes_the_cheapest():
    errors, work = problem(2)
    work += 0.2
    assert within_budget(errors, work, 0.01).tolist() == work.argmin(0).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_the_cheapest_within_an_error(seed):
    errors, work = problem(seed)
    chosen = within_error(errors, work, 0.3)
    for head, candidate in enumerate(chosen):
        serving = [c for c in range(len(errors)) if errors[c, head] <= 0.3]
        assert candidate in serving and work[candidate, head] == min(work[c, head] for c in serving)
