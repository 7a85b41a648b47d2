"""Every rule against enumeration and textbook forms; no rule returns a key twice."""

import numpy as np
import pytest
import scipy.linalg
import torch

from eigenlens.errors import EigenlensError
from eigenlens.estimators import selection
from eigenlens.estimators.selection import RULES


def covariance(n=9, heads=3, seed=0, rank=None):
    x = np.random.default_rng(seed).normal(size=(heads, rank or 2 * n, n)) * np.linspace(0.3, 2, n)
    return torch.from_numpy(np.swapaxes(x, 1, 2) @ x / x.shape[1])


def factors(N=30, r=4, heads=2, seed=0):
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(heads, N, r)) * np.array([3, 2, 1, 0.5][:r])
    return torch.from_numpy(F), torch.from_numpy(rng.uniform(0.1, 2, size=(heads, N)))


def conditional(C, chosen, noise=0.0):
    """Σ − Σ_:S (Σ_SS + σ²I)⁻¹ Σ_S: of one head, by inversion."""
    if not chosen:
        return C
    cross = C[:, chosen]
    return (
        C - cross @ np.linalg.inv(C[np.ix_(chosen, chosen)] + noise * np.eye(len(chosen))) @ cross.T
    )


def greedy(C, m, score):
    """The keys of one head, every step trying each candidate from scratch."""
    chosen = []
    for _ in range(m):
        rest = [j for j in range(len(C)) if j not in chosen]
        chosen.append(max(rest, key=lambda j: score(C, chosen, j)))
    return sorted(chosen)


def log_determinant(C, chosen, j):
    both = [*chosen, j]
    return np.linalg.slogdet(C[np.ix_(both, both)])[1]


def fall(noise):
    return lambda C, chosen, j: -np.trace(conditional(C, [*chosen, j], noise))


@pytest.mark.parametrize("m", [1, 3, 7])
def test_pivoted_cholesky_adds_the_key_with_the_largest_determinant(m):
    C = covariance()
    assert selection.pivoted_cholesky(C, m).tolist() == [
        greedy(c.numpy(), m, log_determinant) for c in C
    ]


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("m", [1, 3, 7])
def test_a_optimal_adds_the_key_that_leaves_least_variance(m, noise):
    C = covariance()
    assert selection.a_optimal(C, m, noise).tolist() == [
        greedy(c.numpy(), m, fall(noise)) for c in C
    ]


def test_noise_may_differ_by_head():
    C, noise = covariance(), torch.tensor([0.0, 5.0, 0.5], dtype=torch.float64)
    assert selection.a_optimal(C, 4, noise).tolist() == [
        greedy(c.numpy(), 4, fall(float(s))) for c, s in zip(C, noise)
    ]


def test_one_covariance_without_heads_gives_one_set():
    C = covariance()
    assert torch.equal(selection.a_optimal(C[1], 4), selection.a_optimal(C, 4)[1])
    assert torch.equal(selection.pivoted_cholesky(C[1], 4), selection.pivoted_cholesky(C, 4)[1])


def test_q_deim_is_the_pivoted_qr_of_the_leading_eigenvectors():
    C = covariance()
    for head, c in zip(selection.select_keys("q-deim", C, 4), C):
        U = scipy.linalg.eigh(c.numpy())[1][:, ::-1][:, :4]
        assert head.tolist() == sorted(scipy.linalg.qr(U.T, pivoting=True)[2][:4])


@pytest.mark.parametrize(
    ("rule", "score"), [("pivoted-cholesky", log_determinant), ("a-optimal", fall(0.0))]
)
def test_pairs_are_those_of_the_dense_model_that_is_never_formed(rule, score):
    F, psi = factors()
    dense = (F @ F.transpose(1, 2) + torch.diag_embed(psi)).numpy()
    assert selection.select_pairs(rule, F, psi, 8, growth=0).tolist() == [
        greedy(C, 8, score) for C in dense
    ]


def test_choosing_many_pairs_a_round_costs_little():
    F, psi = factors(N=400, heads=1)

    def left(chosen):
        return np.trace(
            conditional(
                (F @ F.transpose(1, 2) + torch.diag_embed(psi))[0].numpy(), chosen[0].tolist()
            )
        )

    slow, fast = (
        left(selection.select_pairs("a-optimal", F, psi, 40, growth=growth))
        for growth in (0, 1 / 8)
    )
    random = left(selection.select_pairs("random", F, psi, 40))
    assert slow <= fast < slow + 0.1 * (random - slow)


def test_q_deim_of_pairs_begins_with_the_pivots_and_goes_on():
    F, psi = factors()
    chosen = selection.select_pairs("q-deim", F, psi, 10)
    for head, f in zip(chosen, F):
        first = scipy.linalg.qr(f.numpy().T, pivoting=True)[2][:4]
        assert set(first) <= set(head.tolist()) and len(set(head.tolist())) == 10


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["regular", "zero", "constant", "low rank"])
def test_every_rule_gives_m_distinct_sorted_keys_of_any_covariance(rule, kind):
    C = {
        "regular": covariance(),
        "zero": torch.zeros(3, 9, 9, dtype=torch.float64),
        "constant": torch.ones(3, 9, 9, dtype=torch.float64),
        "low rank": covariance(rank=2),
    }[kind]
    for m in (1, 4, 9):
        found = selection.select_keys(rule, C, m, seed=3)
        assert found.shape == (3, m) and found.dtype == torch.long
        assert all(sorted(set(head)) == head for head in found.tolist())
        assert torch.equal(found, selection.select_keys(rule, C, m, seed=3))
    F = torch.zeros(2, 12, 3, dtype=torch.float64) if kind == "zero" else factors(12, 3)[0]
    chosen = selection.select_pairs(rule, F, torch.zeros(2, 12, dtype=torch.float64), 12)
    assert chosen.tolist() == [list(range(12))] * 2


def test_seeds_differ():
    assert selection.random(50, 10, 0).tolist() != selection.random(50, 10, 1).tolist()


def test_uniform_keys_are_evenly_spaced():
    assert selection.middles(12, 3).tolist() == [2, 6, 10]


@pytest.mark.parametrize("m", [0, 10, -1])
def test_an_impossible_number_is_refused(m):
    with pytest.raises(EigenlensError, match=f"{m} keys cannot be chosen from 9"):
        selection.select_keys("a-optimal", covariance(), m)
    with pytest.raises(EigenlensError, match="cannot be chosen from 30"):
        selection.select_pairs("random", *factors(), 31)


def test_an_unknown_rule_is_refused():
    with pytest.raises(EigenlensError, match="no selection rule 'best'; there are uniform"):
        selection.select_keys("best", covariance(), 3)
    with pytest.raises(EigenlensError, match="no selection rule 'best'"):
        selection.select_pairs("best", *factors(), 3)
