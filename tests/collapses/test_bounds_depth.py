"""Bounds along depth: logarithms against products, and stacks of layers that stay below them."""

import math

import mpmath
import numpy as np
import pytest
import torch

from collapses.heads import norm_1_inf, precise, softmax
from eigenlens.collapses.bounds_depth import (
    LayerNorms,
    depth_bound,
    layer_norms,
    log_published,
    mlp_lipschitz,
)
from eigenlens.errors import EigenlensError


@pytest.mark.parametrize("L", [0, 1, 2, 3, 5])
def test_depth_in_logs_is_the_product(L):
    gamma, beta, scale, heads, lipschitz, r = 1.7, 0.9, 0.35, 3, 1.2, 0.4
    k = mpmath.mpf(4) * gamma * beta * scale * heads * lipschitz
    direct = float(mpmath.log(k ** ((3**L - 1) // 2) * mpmath.mpf(r) ** (3**L)))
    assert log_published(
        r, L, gamma=gamma, beta=beta, scale=scale, heads=heads, lipschitz=lipschitz
    ) == pytest.approx(direct, rel=1e-12)
    layers = [LayerNorms((0.6,) * heads, (1.5,) * heads, scale, lipschitz, (gamma,) * heads)] * L
    assert depth_bound(r, layers, tokens=5).published[-1] == pytest.approx(direct, rel=1e-12)


def test_different_layers_are_fed_into_each_other():
    rng = np.random.default_rng(2)
    layers = [
        LayerNorms(tuple(rng.random(2)), tuple(rng.random(2)), 0.5, 1 + rng.random())
        for _ in range(4)
    ]
    T = 6
    cubic = sharp = mpmath.mpf("0.8")
    bound = depth_bound(0.8, layers, T)
    assert bound.published[0] == bound.sharp[0] == pytest.approx(math.log(0.8))
    for depth, layer in enumerate(layers, 1):
        lam = layer.lipschitz
        cubic = (
            sum(4 * math.sqrt(T) * q * v for q, v in zip(layer.qk, layer.vo)) * 0.5 * lam * cubic**3
        )
        tau_v = sum(mpmath.tanh(0.5 * q * sharp**2 / 2) * v for q, v in zip(layer.qk, layer.vo))
        sharp = math.sqrt(T - 1) * tau_v * 2 * (1 - 1 / T) * lam * sharp
        assert bound.published[depth] == pytest.approx(float(mpmath.log(cubic)), rel=1e-10)
        assert bound.sharp[depth] == pytest.approx(float(mpmath.log(sharp)), rel=1e-10)


@pytest.mark.parametrize("r", [0.0, 1e-300, 1e-3, 1.0, 1e3, 1e300])
@pytest.mark.parametrize("weight", [0.0, 1e-9, 1.0, 1e9])
@pytest.mark.parametrize("T", [1, 128])
def test_depth_is_never_nan(r, weight, T):
    layers = [LayerNorms((weight, 0.0), (1.0, weight), 0.125)] * 700  # 3^700 is no float
    bound = depth_bound(r, layers, T)
    assert not any(math.isnan(v) for v in (*bound.published, *bound.sharp))
    if r > 0 and weight > 0:
        assert math.isfinite(bound.published[48])
    else:
        assert bound.published[48] == bound.sharp[48] == -math.inf
    if T == 1:
        assert bound.sharp[1] == -math.inf
    assert not math.isnan(log_published(r, 700, gamma=1.0, beta=weight, scale=0.125))
    assert len(bound.rows()) == 701


def test_holds_down_to_the_first_layer_that_is_not_certain():
    small, large = LayerNorms((1.0,), (1.0,), 0.5), LayerNorms((1e9,), (1.0,), 0.5)
    # The first layer leaves at most 4 · √4 · ½ · 0.1³ = 4e-3; ½ · 1e9 · (4e-3)² is far above 1.256.
    assert depth_bound(0.1, [small, large, small], 4).holds == (True, True, False, False)
    assert depth_bound(0.1, [small, small, small], 4).holds == (True, True, True, True)
    edge = math.sqrt(2 * 1.256)  # ½ b² = 1.256
    assert depth_bound(edge - 1e-9, [small], 4).holds == (True, True)
    assert depth_bound(edge + 1e-9, [small], 4).holds == (True, False)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mlp", [False, True])
@pytest.mark.parametrize("size", [0.02, 0.3, 3.0])
def test_a_stack_of_layers_stays_under_its_depth_bounds(seed, mlp, size):
    """Three layers of two heads, with or without a ReLU MLP behind each, with 80 digits."""
    rng = np.random.default_rng(seed)
    T, C, H, scale = 5, 3, 2, 0.5
    x = precise(rng.normal(size=C) + size * rng.normal(size=(T, C)))
    start = float(norm_1_inf(x - x.sum(0) / T))
    worst, measured, residuals = [], [], []
    for _ in range(3):
        w_qk, w_vo = rng.normal(size=(H, C, C)), rng.normal(size=(H, C, C)) / 2
        up, down = rng.normal(size=(C, 2 * C)), rng.normal(size=(2 * C, C)) / 4
        r = x - x.sum(0) / T
        gammas = []
        for h in range(H):
            e = scale * (r @ w_qk[h] @ r.T)
            d = e.max(1) - e.min(1)
            gammas.append(float((d.sum() / d.max()) ** 0.5))
        x = sum(softmax(scale * (x @ w_qk[h] @ x.T)) @ x @ precise(w_vo[h]) for h in range(H))
        lipschitz = None
        if mlp:
            x = np.maximum(x @ up + 0.1, 0) @ down
            lipschitz = mlp_lipschitz([torch.from_numpy(up), torch.from_numpy(down)])
            assert lipschitz == pytest.approx(norm_1_inf(up) * norm_1_inf(down))
        weights = torch.from_numpy(w_qk), torch.from_numpy(w_vo)
        worst.append(layer_norms(*weights, scale, lipschitz))
        measured.append(layer_norms(*weights, scale, lipschitz, tuple(gammas)))
        residuals.append(norm_1_inf(x - x.sum(0) / T))
    bounds, with_gamma = depth_bound(start, worst, T), depth_bound(start, measured, T)
    for depth, left in enumerate(residuals, 1):
        left = float(mpmath.log(left)) if left > 0 else -math.inf
        assert left <= bounds.sharp[depth] + 1e-9
        assert left <= with_gamma.published[depth] + 1e-9 <= bounds.published[depth] + 2e-9
        assert bounds.sharp[depth] <= bounds.published[depth]


def test_lipschitz_constants_of_activations():
    z = torch.linspace(-6, 6, 200001, dtype=torch.float64)
    for activation, largest in ((torch.nn.functional.gelu, 1.129), (torch.nn.functional.silu, 1.1)):
        slopes = activation(z).diff() / z.diff()
        assert largest - 1e-3 < float(slopes.abs().max()) <= largest
    w = torch.eye(2)
    assert mlp_lipschitz([2 * w, 3 * w], 1.129) == pytest.approx(6 * 1.129)


def test_bad_input_is_said():
    with pytest.raises(EigenlensError, match="as many"):
        LayerNorms((1.0,), (1.0, 2.0), 1.0)
    with pytest.raises(EigenlensError, match="not negative"):
        LayerNorms((1.0,), (1.0,), -0.5)
    with pytest.raises(EigenlensError, match="at least one token"):
        depth_bound(1.0, [], 0)
