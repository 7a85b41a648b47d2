"""Softmax attention as an interpolant.

The errors of the published construction, and sequences mapped by two layers of it.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from eigenlens.attention.ramps import HARD, Ramp, SequenceMap, fit_network, network
from eigenlens.errors import EigenlensError

ONE = torch.ones(1, dtype=torch.float64)
GRID = torch.linspace(-1, 1, 4001, dtype=torch.float64)[:, None]


def sup(ramp, grid=GRID, f=lambda y: y):
    return float((ramp(grid) - f(grid[:, 0])).abs().max())


@pytest.mark.parametrize(("p", "error"), [(9, 0.1245), (17, 0.0620), (129, 0.00775)])
def test_a_hard_ramp_is_off_by_half_a_spacing_at_most(p, error):
    found = sup(Ramp(-1, 1, p, HARD, ONE))
    assert found <= 1 / (p - 1) and found == pytest.approx(error, abs=5e-5)


def test_the_error_halves_as_the_anchors_double():
    errors = [sup(Ramp(-1, 1, 2**k + 1, HARD, ONE)) for k in range(3, 8)]
    assert [a / b for a, b in zip(errors, errors[1:])] == pytest.approx([2.0] * 4, rel=0.01)


def test_a_soft_ramp_is_about_four_times_nearer():
    """At the ends it is what the three nearest anchors give.

    The published .0017 leaves out the very end.
    """
    found, spacing = sup(Ramp(-1, 1, 129, None, ONE)), 2 / 128
    weights = [math.exp(-2 * k * k) for k in range(6)]
    assert found == pytest.approx(
        spacing * sum(k * w for k, w in enumerate(weights)) / sum(weights)
    )
    assert found < 0.00775 / 4 and found == pytest.approx(0.0017, rel=0.15)
    inner = GRID[(GRID[:, 0].abs() < 1 - 2 * spacing)]
    assert sup(Ramp(-1, 1, 129, None, ONE), inner) < 0.0004


@pytest.mark.parametrize("beta", [3.0, 40.0, None])
def test_the_scores_are_the_inner_products_of_queries_and_keys(beta):
    torch.manual_seed(0)
    w, x = torch.randn(3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    ramp = Ramp(-0.7, 1.1, 11, beta, w, 0.2)
    y = x @ w + 0.2
    L = torch.linspace(-0.7, 1.1, 11, dtype=torch.float64)
    spacing = 1.8 / 10
    dense = torch.softmax(
        -((2 / spacing if beta is None else beta) / spacing) * (y[..., None] - L) ** 2, -1
    )
    torch.testing.assert_close(ramp(x), dense @ L)
    by_torch = F.scaled_dot_product_attention(
        ramp.queries(y.flatten())[0], ramp.keys[0], L[None, :, None], scale=1.0
    )
    torch.testing.assert_close(by_torch.view(2, 5), dense @ L)


def test_beyond_the_range_it_stays_at_the_ends():
    ramp = Ramp(-1, 1, 33, HARD, ONE, heads=3)
    found = ramp(torch.tensor([[-7.0], [1.5], [40.0]], dtype=torch.float64))
    assert found.tolist() == pytest.approx([-1.0, 1.0, 1.0], abs=1e-9)


@pytest.mark.parametrize("f", [torch.sin, torch.relu, lambda y: y.abs() ** 1.5])
@pytest.mark.parametrize("heads", [1, 4])
def test_with_the_values_of_a_function_it_is_the_function(f, heads):
    error = sup(Ramp(-1, 1, 33, HARD, ONE, values=f, heads=heads), f=f)
    assert error <= 1.5 * 1 / (32 * heads)  # Lipschitz constants are 1, 1 and 1.5


def test_heads_divide_the_error_as_anchors_do():
    one = sup(Ramp(-1, 1, 9, HARD, ONE, heads=1))
    for heads in (2, 4, 8):
        assert sup(Ramp(-1, 1, 9, HARD, ONE, heads=heads)) == pytest.approx(one / heads, rel=0.01)


def sorter(dtype=torch.float64):
    """Two numbers in order: min = x₁ − relu(x₁ − x₂), max = x₂ + relu(x₁ − x₂).

    X itself is relu(x + 1) − 1 on the box.
    """
    weight = torch.tensor(
        [[[1.0], [0.0]], [[0.0], [1.0]], [[1.0], [-1.0]], [[0.0], [0.0]]], dtype=dtype
    )
    shift = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=dtype)
    outer = torch.tensor([[[1.0, 0.0, -1.0, -1.0]], [[0.0, 1.0, 1.0, -1.0]]], dtype=dtype)
    return weight, shift, outer


def pairs_of_numbers(number=400):
    return (
        2
        * torch.rand(number, 2, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        - 1
    )


@pytest.mark.parametrize("p", [9, 33, 129])
def test_two_layers_of_attention_sort_two_numbers_within_the_bound(p):
    x = pairs_of_numbers()
    found = SequenceMap(*sorter(), p=p, beta=HARD)
    error = (found(x) - x.sort(1).values).abs().amax(0)  # (T, E)
    assert bool((error <= found.bound()).all())
    # two units of ranges 2 and 4; the constant's is nothing
    by_hand = (2 / (p - 1) / 2) + (4 / (p - 1) / 2)
    assert found.bound().flatten().tolist() == pytest.approx([by_hand] * 2, abs=1e-5)


def test_it_is_the_network_in_the_limit_and_the_same_with_a_softmax_for_its_second_layer():
    x = pairs_of_numbers(50)
    torch.testing.assert_close(network(*sorter(), x), x.sort(1).values)
    found = SequenceMap(*sorter(), p=513)
    assert float((found(x) - x.sort(1).values).abs().max()) < 0.005
    torch.testing.assert_close(found.as_softmax(x), found(x))


def test_its_first_layer_is_the_linear_map_of_the_whole_sequence():
    torch.manual_seed(0)
    weight, x = torch.randn(6, 4, 3, dtype=torch.float64), torch.randn(5, 4, 3, dtype=torch.float64)
    shift = torch.randn(6, dtype=torch.float64)
    found = SequenceMap(weight, shift, torch.randn(4, 2, 6, dtype=torch.float64), p=5)
    y, place = found.mix(x)
    wanted = torch.einsum("mtc,btc->bm", weight, x) + shift
    torch.testing.assert_close(y, wanted[:, None].expand_as(y))
    torch.testing.assert_close(place, torch.eye(4, dtype=torch.float64).expand(5, 4, 4))


def test_more_units_come_nearer_to_a_continuous_map():
    """Sorted triples, seen through attention: as near as the network that it was built from."""
    draw = torch.Generator().manual_seed(1)
    x = 2 * torch.rand(1500, 3, 1, generator=draw, dtype=torch.float64) - 1
    fresh = 2 * torch.rand(100, 3, 1, generator=draw, dtype=torch.float64) - 1
    errors = []
    for units in (8, 32, 128):
        parts = fit_network(x, x.sort(1).values, units)
        through = SequenceMap(*parts, p=65)(fresh)
        assert float((through - network(*parts, fresh)).square().mean().sqrt()) < 0.01
        errors.append(float((through - fresh.sort(1).values).square().mean().sqrt()))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.05


def test_a_linear_target_needs_no_bent_unit():
    x = torch.randn(200, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = fit_network(x, 3 * x.flip(1) + 1, 6)
    torch.testing.assert_close(network(*parts, x), 3 * x.flip(1) + 1, atol=1e-3, rtol=1e-3)


def test_what_cannot_be_built_is_said():
    with pytest.raises(EigenlensError, match="a < b"):
        Ramp(1, 1, 9)
    with pytest.raises(EigenlensError, match="β must be above 0"):
        Ramp(-1, 1, 9, beta=-1.0)
    with pytest.raises(EigenlensError, match="at least 5"):
        fit_network(torch.zeros(4, 3, 1), torch.zeros(4, 3, 1), 4)
    with pytest.raises(EigenlensError, match=r"\(M, T, C\)"):
        SequenceMap(torch.zeros(2, 3, 1), torch.zeros(3), torch.zeros(3, 1, 2), p=5)
