"""Attention that does not explain keys away.

The guarantee, the mixture, and Sinkhorn's iteration.
"""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenlens.attention import Shape, make
from eigenlens.attention.call_terms import CallTerms
from eigenlens.attention.doubly_normalised import balanced, column_sums
from eigenlens.errors import EigenlensError


def by_hand(s):
    """Both divisions as they are written, without logarithms, in numpy's longest floats."""
    e = np.exp(np.asarray(s, dtype=np.longdouble))
    xi = e / e.sum(-2, keepdims=True)
    return (xi / xi.sum(-1, keepdims=True)).astype(np.float64)


def keyed(s):
    """Queries and keys whose scores are `s` (T, S): the keys are unit vectors."""
    T, S = s.shape
    return s.view(1, 1, T, S), torch.eye(S, dtype=s.dtype).view(1, 1, S, S)


SCORES = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.floats(-50, 50))
)


@given(SCORES)
@settings(max_examples=200, deadline=None)
def test_rows_sum_to_one_and_no_column_falls_below_its_share(s):
    q, k = keyed(torch.from_numpy(s))
    A = make("doubly-normalised").weights(q, k, scale=1.0)[0, 0]
    assert torch.isfinite(A).all()
    torch.testing.assert_close(A.sum(1), torch.ones(len(s), dtype=torch.float64))
    assert float(A.sum(0).min()) >= 1 / s.shape[1] - 1e-6
    np.testing.assert_allclose(A.numpy(), by_hand(s), atol=1e-12, rtol=1e-6)


@given(SCORES)
@settings(max_examples=50, deadline=None)
def test_the_guarantee_holds_in_single_precision(s):
    q, k = keyed(torch.from_numpy(s).float())
    A = make("dnas").weights(q, k, scale=1.0)[0, 0]
    assert float(A.sum(0).min()) >= 1 / s.shape[1] - 1e-6


def test_the_guarantee_is_tight():
    """One query outbids all others for every key, and these look at the first key alone.

    The rest keep 1/S each.
    """
    S = 6
    s = torch.full((S, S), -40.0, dtype=torch.float64)
    s[0], s[1:, 0] = 40.0, 0.0
    q, k = keyed(s)
    columns = make("dnas").weights(q, k, scale=1.0)[0, 0].sum(0)
    torch.testing.assert_close(columns[1:], torch.full((S - 1,), 1 / S, dtype=torch.float64))


def test_softmax_explains_a_key_away_that_this_keeps():
    s = torch.zeros(5, 5, dtype=torch.float64)
    s[:, 2] = -65.0
    q, k = keyed(s)
    softmax, both = (
        make(name).weights(q, k, scale=1.0)[0, 0, :, 2].sum() for name in ("softmax", "dnas")
    )
    # a constant of a column cancels
    assert float(softmax) < 1e-27 and float(both) == pytest.approx(1.0)


@pytest.mark.parametrize("sign", [30.0, -200.0])
def test_the_mixture_ends_in_softmax_and_in_the_doubly_normalised(sign):
    """u = σ(w): 1 up to rounding at w = 30, 0 at w = −200."""
    q, k, v = (torch.randn(2, 3, 7, 4) for _ in range(3))
    hybrid = make("hnas", Shape(heads=3))
    with torch.no_grad():
        hybrid.w.fill_(sign)
    other = make("softmax" if sign > 0 else "dnas")
    torch.testing.assert_close(hybrid(q, k, v), other(q, k, v))
    torch.testing.assert_close(hybrid.weights(q, k), other.weights(q, k))


def test_the_mixture_is_learned_for_each_head():
    q, k, v = (torch.randn(2, 3, 7, 4, dtype=torch.float64) for _ in range(3))
    hybrid = make("hybrid-normalised", Shape(heads=3)).double()
    with torch.no_grad():
        hybrid.w.copy_(torch.tensor([-1.0, 0.0, 2.0])[:, None, None])
    s = (q @ k.transpose(2, 3) / 2).detach()
    u = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64).sigmoid().view(3, 1, 1)
    expected = (u * s.softmax(3) + (1 - u) * torch.from_numpy(by_hand(s))) @ v
    out = hybrid(q, k, v)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    assert bool((hybrid.w.grad != 0).all())


def test_two_half_steps_of_sinkhorn_are_the_doubly_normalised():
    q, k, v = (torch.randn(2, 3, 7, 4) for _ in range(3))
    torch.testing.assert_close(make("sinkhorn", iterations=1)(q, k, v), make("dnas")(q, k, v))


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_sinkhorn_is_the_two_divisions_again_and_again(iterations):
    q, k, v = (
        torch.randn(1, 2, 6, 4).double(),
        torch.randn(1, 2, 8, 4).double(),
        torch.randn(1, 2, 8, 3).double(),
    )
    A = (q @ k.transpose(2, 3) / 2).exp()
    for _ in range(iterations):
        A = A / A.sum(2, keepdim=True)
        A = A / A.sum(3, keepdim=True)
    torch.testing.assert_close(make("sinkhorn", iterations=iterations)(q, k, v), A @ v)


def test_sinkhorn_nears_columns_that_sum_to_one():
    q, k = (torch.randn(1, 1, 12, 4).double() for _ in range(2))
    off = [
        float((make("sinkhorn", iterations=n).weights(q, k)[0, 0].sum(0) - 1).abs().max())
        for n in (1, 4, 50)
    ]
    assert off[0] > off[1] > off[2] and off[2] < 1e-9


def test_padding_is_left_out_on_both_sides():
    """The output of the tokens that stand is the output without the others.

    Nothing is not a number.
    """
    q, k, v = (torch.randn(2, 2, 9, 4, requires_grad=True) for _ in range(3))
    keys = torch.ones(2, 9, dtype=torch.bool)
    keys[0, 6:], keys[1] = False, False  # the second input is padding alone
    for name in ("dnas", "hnas", "sinkhorn"):
        mechanism = make(name, Shape(heads=2))
        out = mechanism(q, k, v, keys=keys)
        alone = mechanism(q[:1, :, :6], k[:1, :, :6], v[:1, :, :6])
        torch.testing.assert_close(out[:1, :, :6], alone)
        assert float(out[1].detach().abs().max()) == 0.0
        assert float(mechanism.weights(q, k, keys=keys)[0, :, 6:].detach().abs().max()) == 0.0
        assert all(
            bool(torch.isfinite(g).all())
            for g in torch.autograd.grad(out.square().sum(), (q, k, v))
        )


def test_keys_beside_queries_that_are_all_padding():
    q, k, v = (
        torch.randn(1, 1, 3, 4, requires_grad=True),
        torch.randn(1, 1, 5, 4, requires_grad=True),
        torch.randn(1, 1, 5, 4),
    )
    queries = torch.zeros(1, 3, dtype=torch.bool)
    for name in ("dnas", "hnas", "sinkhorn"):
        out = make(name)(q, k, v, queries=queries)
        assert float(out.abs().max()) == 0.0
        out.sum().backward()
        assert bool(torch.isfinite(q.grad).all()) and bool(torch.isfinite(k.grad).all())


def test_sums_of_columns_over_many_blocks():
    q, k = (
        torch.randn(1, 2, 700, 4, dtype=torch.float64),
        torch.randn(1, 2, 30, 4, dtype=torch.float64),
    )
    queries = torch.ones(1, 700, dtype=torch.bool)
    queries[0, 200:560] = False  # one block of 256 whole
    expected = (q[:, :, queries[0]] @ k.transpose(2, 3) / 2).logsumexp(2)
    torch.testing.assert_close(column_sums(q, k, CallTerms(0.5, queries=queries)), expected)
    v = torch.randn(1, 2, 30, 4, dtype=torch.float64)
    for name in ("dnas", "hnas"):
        mechanism = make(name, Shape(heads=2)).double()
        torch.testing.assert_close(
            mechanism(q, k, v, queries=queries), mechanism.reference(q, k, v, queries=queries)
        )


def test_a_triangle_of_pairs_is_refused_as_a_causal_mask_is():
    """The step over queries would let earlier outputs depend on later tokens."""
    q, k, v = (torch.randn(1, 1, 6, 4) for _ in range(3))
    for name in ("dnas", "hnas", "sinkhorn"):
        with pytest.raises(EigenlensError, match="cannot be causal"):
            make(name)(q, k, v, causal=True)
        with pytest.raises(EigenlensError, match="no other mask"):
            make(name)(q, k, v, pairs=torch.ones(1, 1, 6, 6, dtype=torch.bool).tril())


def test_under_a_causal_mask_the_step_over_queries_would_leak_the_future():
    """Why it is refused: the pattern of earlier queries moves with a later one."""
    q, k = torch.randn(1, 1, 8, 4).double(), torch.randn(1, 1, 8, 4).double()
    later = torch.ones(8, 8, dtype=torch.bool).triu(1)
    moved = q.clone()
    moved[:, :, 7] += 5
    before, after = (
        balanced((x @ k.transpose(2, 3) / 2).masked_fill(later, -torch.inf)) for x in (q, moved)
    )
    assert float((after - before)[0, 0, :7].abs().max()) > 0.01
