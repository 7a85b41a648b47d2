"""Interpolated keys.

The fast forms equal the formula, computed scores stay exact, W is fitted, learned and refitted.
"""

import pytest
import torch
import torch.nn.functional as F

from eigenlens.attention.interpolated import InterpolatedKeys, lmmse
from eigenlens.errors import EigenlensError

B, H, N, D = 3, 2, 24, 8


def rows(heads=H, n=N, number=400):
    """Correlated rows with a mean, (heads, number, n), and their mean and covariance."""
    factors = torch.randn(heads, number, 5, dtype=torch.float64) @ torch.randn(
        heads, 5, n, dtype=torch.float64
    )
    x = (
        factors
        + 0.3 * torch.randn(heads, number, n, dtype=torch.float64)
        + torch.randn(heads, 1, n, dtype=torch.float64)
    )
    centred = x - x.mean(1, keepdim=True)
    return x, x.mean(1), centred.transpose(1, 2) @ centred / (number - 1)


def some_keys(m, heads=H, n=N):
    return torch.stack([torch.randperm(n)[:m] for _ in range(heads)])


def inputs(**options):
    return [torch.randn(B, H, N, D, **options) for _ in range(3)]


@pytest.mark.parametrize("m", [1, 3, 6, 12, 20, N])  # few keys go by scores, many by keys
@pytest.mark.parametrize("by_query", [False, True])
def test_the_fast_form_is_the_dense_one_with_its_gradients(m, by_query):
    _, mean, covariance = rows()
    mean = mean[:, None] + torch.randn(H, N, N) if by_query else mean
    mechanism = InterpolatedKeys.from_moments(mean, covariance, some_keys(m), learned=True)
    qkv = inputs(requires_grad=True)
    wanted = [*qkv, *([mechanism.mixture, mechanism.bias] if m < N else [])]
    weight = torch.randn(B, H, N, D)
    fast, dense = mechanism(*qkv), mechanism.reference(*qkv)
    torch.testing.assert_close(fast, dense, atol=1e-5, rtol=1e-5)
    found = [torch.autograd.grad((out * weight).sum(), wanted) for out in (fast, dense)]
    for left, right in zip(*found):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


def test_both_associations_are_used():
    _, mean, covariance = rows()
    assert InterpolatedKeys.from_moments(mean, covariance, some_keys(2))._by_scores(N, D)
    assert not InterpolatedKeys.from_moments(mean, covariance, some_keys(20))._by_scores(N, D)


def test_with_every_key_computed_it_is_full_attention():
    _, mean, covariance = rows()
    qkv = inputs()
    mechanism = InterpolatedKeys.from_moments(mean, covariance, some_keys(N))
    torch.testing.assert_close(
        mechanism(*qkv), F.scaled_dot_product_attention(*qkv), atol=1e-5, rtol=1e-5
    )


def test_w_is_the_regression_of_all_entries_on_the_computed_ones():
    x, mean, covariance = rows()
    keys = some_keys(6)
    weights, bias = lmmse(mean, covariance, keys, ridge=0.0)
    for h in range(H):
        given = torch.cat([x[h][:, keys[h]], torch.ones(len(x[h]), 1)], 1)
        solved = torch.linalg.lstsq(given, x[h]).solution  # (m + 1, n), with an intercept
        torch.testing.assert_close(weights[h], solved[:-1].T, atol=1e-8, rtol=1e-6)
        torch.testing.assert_close(bias[h, 0], solved[-1], atol=1e-8, rtol=1e-6)


def test_rows_of_low_rank_are_recovered_from_as_many_keys():
    """Scores `q·k` with fixed keys have rank d: d keys and their covariance give the others."""
    k = torch.randn(1, H, N, D).expand(B, H, N, D)
    q, v = torch.randn(B, H, N, D), torch.randn(B, H, N, D)
    many = torch.randn(H, 4000, D, dtype=torch.float64) @ k[0].double().transpose(1, 2) * D**-0.5
    covariance = torch.stack([head.T.cov() for head in many])
    mechanism = InterpolatedKeys.from_moments(
        many.mean(1), covariance, some_keys(D + 2), ridge=1e-12
    )
    torch.testing.assert_close(
        mechanism(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-3, rtol=1e-3
    )


def test_learned_weights_move_and_frozen_ones_do_not():
    _, mean, covariance = rows()
    keys = some_keys(4)
    for learned in (True, False):
        mechanism = InterpolatedKeys.from_moments(mean, covariance, keys, learned=learned)
        before = mechanism.mixture.detach().clone()
        assert len(list(mechanism.parameters())) == 2 * learned
        project = torch.nn.Linear(D, D)
        optimiser = torch.optim.SGD([*mechanism.parameters(), *project.parameters()], lr=0.5)
        q, k, v = inputs()
        mechanism(project(q), k, v).square().sum().backward()
        optimiser.step()
        assert torch.equal(before, mechanism.mixture) != learned


def test_a_refit_takes_the_new_moments():
    _, mean, covariance = rows()
    _, other_mean, other = rows()
    keys = some_keys(4)
    mechanism = InterpolatedKeys.from_moments(mean, covariance, keys, learned=True)
    before = mechanism.mixture.detach().clone()
    mechanism.refit(other_mean, other)
    fresh = InterpolatedKeys.from_moments(other_mean, other, keys)
    assert not torch.allclose(before, mechanism.mixture)
    torch.testing.assert_close(mechanism.mixture.detach(), fresh.mixture)
    torch.testing.assert_close(mechanism.bias.detach(), fresh.bias)


def test_scores_save_only_below_nd_over_n_plus_d():
    n, d = 128, 32
    full = 2 * n * n * d
    for m in (8, 16, 25, 27, 32, 64):
        keys = torch.arange(m)[None]
        mechanism = InterpolatedKeys(keys, torch.zeros(1, n, m), torch.zeros(1, 1, n))
        exact = n * m * d + n * (n - m) * m + n * n * d
        assert mechanism.cost(n, d) <= exact
        assert (n * m * d + n * n * m + n * n * d < full) == (m < n * d / (n + d))


def test_what_does_not_fit_is_refused():
    _, mean, covariance = rows()
    mechanism = InterpolatedKeys.from_moments(mean, covariance, some_keys(4))
    with pytest.raises(EigenlensError, match="24 keys"):
        mechanism(*(x[:, :, :20] for x in inputs()))
    with pytest.raises(EigenlensError, match="causal"):
        mechanism(*inputs(), causal=True)
    with pytest.raises(EigenlensError, match="interpolated keys cannot have padding"):
        mechanism(*inputs(), keys=torch.ones(B, N, dtype=torch.bool))
    with pytest.raises(EigenlensError, match="twice"):
        InterpolatedKeys(
            torch.zeros(H, 2, dtype=torch.long), torch.zeros(H, N, 2), torch.zeros(H, 1, N)
        )
