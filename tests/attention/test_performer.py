"""Performer: its directions, that its features estimate the exponential, and that far keys break
nothing.
"""

import pytest
import torch
import torch.nn.functional as F

from eigenlens.attention import make
from eigenlens.attention.performer import directions
from eigenlens.errors import EigenlensError

CPU = torch.device("cpu")


def w_of(width, features, seed=0):
    return directions(width, features, seed, torch.float64, CPU)


@pytest.mark.parametrize(("width", "features"), [(8, 8), (8, 20), (8, 3), (1, 4)])
def test_directions_are_orthogonal_in_blocks_and_the_same_every_time(width, features):
    w = w_of(width, features)
    assert w.shape == (features, width)
    for block in w.split(width):
        gram = block @ block.T
        torch.testing.assert_close(gram, gram.diagonal().diag(), atol=1e-10, rtol=0)
    torch.testing.assert_close(w, w_of(width, features))
    assert not torch.allclose(w, w_of(width, features, seed=1))


def test_directions_are_those_of_a_normal_distribution():
    """Mean 0 and covariance I over many seeds, within five standard errors.

    Lengths of the mean square D.
    """
    w = torch.stack([w_of(4, 4, seed) for seed in range(4000)])
    rows = w.reshape(-1, 4)
    assert float(rows.mean(0).abs().max()) < 5 * len(rows) ** -0.5
    covariance = rows.T @ rows / len(rows)
    assert float((covariance - torch.eye(4)).abs().max()) < 5 * (2 / len(w)) ** 0.5
    assert float(rows.square().sum(1).mean()) == pytest.approx(4, abs=0.1)


def test_features_estimate_the_exponential_and_more_do_it_better():
    torch.manual_seed(0)
    q, k, v = (0.7 * torch.randn(1, 4, 40, 8) for _ in range(3))
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    errors = {
        m: sum(
            float(
                (make("performer", features=m, seed=s)(q, k, v, causal=True) - wanted)
                .square()
                .mean()
            )
            for s in range(8)
        )
        for m in (8, 64, 512)
    }
    assert errors[512] < errors[64] / 2 < errors[8] / 4
    assert errors[512] / 8 < 0.1 * float(wanted.square().mean())


def test_the_pattern_is_that_of_the_formula():
    """Written out for one head, in float64, without any constant taken off."""
    torch.manual_seed(1)
    q, k = (torch.randn(1, 1, 9, 6, dtype=torch.float64) for _ in range(2))
    w = w_of(6, 16, 5)
    phi = [
        torch.exp(x[0, 0] * 0.4**0.5 @ w.T - 0.4 * x[0, 0].square().sum(1, keepdim=True) / 2)
        for x in (q, k)
    ]
    A = (phi[0] @ phi[1].T).tril()
    found = make("performer", features=16, seed=5).weights(q, k, causal=True, scale=0.4)[0, 0]
    torch.testing.assert_close(found, A / A.sum(1, keepdim=True))


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("causal", [False, True])
def test_vectors_of_any_length_give_finite_outputs_and_gradients(size, causal):
    torch.manual_seed(0)
    q, k = (torch.randn(2, 2, 30, 128).mul(size).requires_grad_() for _ in range(2))
    v = torch.randn(2, 2, 30, 5, requires_grad=True)
    out = make("performer")(q, k, v, causal=causal)
    out.square().sum().backward()
    assert (
        torch.isfinite(out).all()
        and float(out.detach().abs().max()) <= float(v.detach().abs().max()) + 1e-4
    )
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


def test_a_later_key_of_any_length_changes_nothing_before():
    torch.manual_seed(0)
    mechanism = make("performer", chunk=8)
    q, k, v = (3 * torch.randn(1, 2, 40, 16) for _ in range(3))
    before = mechanism(q, k, v, causal=True)
    for factor in (1e-4, 10.0, 1e4):
        changed = k.clone()
        changed[:, :, 21:] *= factor
        assert torch.equal(mechanism(q, changed, v, causal=True)[:, :, :21], before[:, :, :21])


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(EigenlensError, match="at least 1 feature"):
        make("performer", features=0)
