"""Every quantity in a bound is what its formula says, at the edges, too."""

import math

import numpy as np
import pytest
import torch

from collapses.heads import bound_of, norm_1_inf, numpy_softmax, random_head
from eigenlens.collapses.bounds import deviation, dobrushin, head_bound
from eigenlens.collapses.bounds_depth import LayerNorms, depth_bound
from eigenlens.collapses.bounds_layers import layer_bound
from eigenlens.errors import EigenlensError
from eigenlens.stats.geometry import composite_norm


def test_every_quantity_is_its_formula():
    x, w_qk, w_vo = random_head()
    scale, (T, C) = 0.5, x.shape
    r = x - x.mean(0)
    d = []
    for i in range(T):
        e = [
            scale * sum(r[i, a] * w_qk[a, b] * r[j, b] for a in range(C) for b in range(C))
            for j in range(T)
        ]
        d.append(max(abs(e[j] - e[k]) for j in range(T) for k in range(T)))
    p = numpy_softmax(scale * x @ w_qk @ x.T)
    tau = max(
        0.5 * sum(abs(p[i, j] - p[k, j]) for j in range(T)) for i in range(T) for k in range(T)
    )
    columns = lambda m: max(sum(abs(m[i, j]) for i in range(len(m))) for j in range(len(m[0])))  # noqa: E731
    norm = lambda m: math.sqrt(columns(m) * columns(m.T))  # noqa: E731
    out = p @ x @ w_vo
    expected = {
        "max_d": max(d),
        "gamma": math.sqrt(sum(d) / max(d)),
        "beta": columns(w_qk) * norm(w_vo),
        "cubic": 4 * math.sqrt(sum(d) / max(d)) * columns(w_qk) * norm(w_vo) * scale * norm(r) ** 3,
        "unconditional": (
            math.sqrt(sum(math.exp(v) - 1 for v in d) * (math.exp(max(d)) - 1))
            * norm(r)
            * norm(w_vo)
        ),
        "sharp": (
            2
            * (1 - 1 / T)
            * math.sqrt(2 * sum(math.tanh(v / 4) for v in d) * math.tanh(max(d) / 4))
            * norm(r)
            * norm(w_vo)
        ),
        "dobrushin": tau,
        "linear": math.sqrt(T - 1) * tau * norm(r) * norm(w_vo),
        "residual_in": norm(r),
        "residual_out": norm(out - out.mean(0)),
        "range_in": np.ptp(x @ w_vo, axis=0).max(),
        "range_out": np.ptp(out, axis=0).max(),
    }
    bound = bound_of(x, w_qk, w_vo)
    assert bound.holds
    assert {k: getattr(bound, k) for k in expected} == pytest.approx(expected, rel=1e-10)
    assert bound.row()["sharp"] == bound.sharp


def test_the_condition_is_on_d():
    x, w_qk, w_vo = random_head()
    r = x - x.mean(0)
    d = np.ptp(0.5 * r @ w_qk @ r.T, axis=1).max()
    just_in, just_out = (bound_of(x, w_qk * (1.256 * f / d), w_vo) for f in (1 - 1e-9, 1 + 1e-9))
    assert just_in.holds and just_in.cubic is not None
    assert not just_out.holds and just_out.cubic is None and just_out.unconditional is not None
    assert math.expm1(1.256) <= 2 * 1.256 and math.expm1(1.257) > 2 * 1.257
    assert not bound_of(x, w_qk, w_vo, applicable=False).holds


def test_deviation_of_scores_is_that_of_the_weights_about_the_mean():
    x, w_qk, w_vo = random_head()
    r = x - x.mean(0)
    expected = 0.5 * r @ w_qk @ r.T
    rng = np.random.default_rng(1)
    # biases of keys and queries
    scores = 0.5 * x @ w_qk @ x.T + rng.normal(size=(7, 1)) + rng.normal(size=(1, 7))
    e, seen = deviation(torch.from_numpy(scores))
    assert seen.all()
    assert e.numpy() == pytest.approx(expected - expected.mean(1, keepdims=True), abs=1e-12)
    with_weights = bound_of(x, w_qk, w_vo)
    for options in ({"scores": torch.from_numpy(scores)}, {}):
        without = bound_of(x, w_qk, w_vo, applicable=False, **options)
        assert (without.max_d, without.gamma, without.sharp) == pytest.approx(
            (with_weights.max_d, with_weights.gamma, with_weights.sharp), rel=1e-9
        )


@pytest.mark.parametrize("seed", range(20))
def test_the_bounds_hold_about_any_centre(seed):
    x, w_qk, w_vo = random_head(seed=seed, size=0.1)
    rng = np.random.default_rng(seed)
    for centre in (
        np.median(x, 0),
        (x.max(0) + x.min(0)) / 2,
        x[0],
        x.mean(0) + rng.normal(size=4),
    ):
        bound = bound_of(x, w_qk, w_vo, centre=torch.from_numpy(centre))
        assert bound.residual_in == pytest.approx(norm_1_inf(x - centre))
        assert bound.violated == ()
        assert bound.residual_out == pytest.approx(bound_of(x, w_qk, w_vo).residual_out)


def test_two_tokens_attain_the_constants():
    """`X = (a, −a)` with one channel: `‖R‖ = a√2`, `D = 2a²w`, and the output is `a tanh(a²w)`
    times the weight.
    """
    a, w = 1e-3, 2.0
    bound = bound_of(np.array([[a], [-a]]), np.array([[w]]), np.array([[3.0]]), 1.0)
    assert bound.residual_out == pytest.approx(
        3 * math.sqrt(2) * a * math.tanh(a * a * w), rel=1e-9
    )
    assert bound.linear == pytest.approx(bound.residual_out, rel=1e-9)
    assert bound.sharp == pytest.approx(bound.residual_out, rel=1e-9)
    assert bound.cubic == pytest.approx(8 * math.sqrt(2) * bound.residual_out, rel=1e-5)
    by_depth = depth_bound(bound.residual_in, [LayerNorms((w,), (3.0,), 1.0)], 2)
    assert math.exp(by_depth.sharp[1]) == pytest.approx(bound.residual_out, rel=1e-9)


@pytest.mark.parametrize("d", [1e-3, 0.5, 1.256, 6.0, 40.0])
def test_no_better_constant_than_tanh_bounds_a_row(d):
    """Two keys, the better one with `q = 1/(1 + e^{D/2})`: the row is at distance `2 tanh(D/4)`,
    less than `e^D − 1`.
    """
    q = np.array([1, math.exp(d / 2)]) / (1 + math.exp(d / 2))
    p = q * np.exp([d, 0])
    p /= p.sum()
    distance = np.abs(p - q).sum()
    assert distance == pytest.approx(2 * math.tanh(d / 4), rel=1e-9)
    for share in np.linspace(0.001, 0.999, 999):
        other = np.array([share, 1 - share]) * np.exp([d, 0])
        assert np.abs(other / other.sum() - [share, 1 - share]).sum() <= distance * (1 + 1e-9)


def test_dobrushin_contracts_distances_in_any_norm_but_not_the_composite_one():
    rng = np.random.default_rng(3)
    for _ in range(50):
        p, x = numpy_softmax(3 * rng.normal(size=(6, 6))), rng.normal(size=(6, 3))
        tau = float(dobrushin(torch.from_numpy(p)))
        for order in (1, 2, np.inf):
            far = lambda y: max(np.linalg.norm(a - b, order) for a in y for b in y)  # noqa: B023, E731
            assert far(p @ x) <= tau * far(x) * (1 + 1e-12)
    # All look at one of two tokens, half of them at each: the one token that stood apart now stands
    # for half of them.
    T = 8
    p = np.eye(T)[[0] * 4 + [1] * 4]
    x = np.eye(T)[:, :1]
    y = p @ x
    assert float(dobrushin(torch.from_numpy(p))) == 1
    grown = norm_1_inf(y - y.mean()) / norm_1_inf(x - x.mean())
    assert 1 < grown <= math.sqrt(T - 1)
    assert grown == pytest.approx(math.sqrt((T / 2 * 0.5) / (2 * (1 - 1 / T) * (1 - 1 / T))))


def test_rows_that_see_different_keys():
    pattern = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    bound = head_bound(x, pattern, None, torch.eye(1), 1.0, applicable=False)
    assert bound.unconditional is None and bound.sharp is None and bound.beta is None
    assert bound.dobrushin == 0.5
    assert (bound.range_in, bound.range_out) == (2, 1)
    assert bound.residual_out == pytest.approx(
        math.sqrt(1 * 0.5)
    ) and bound.linear == pytest.approx(0.5 * math.sqrt(2))


@pytest.mark.parametrize("T", [1, 5])
def test_equal_tokens_have_nothing_left(T):
    _, w_qk, w_vo = random_head()
    x = np.repeat(np.array([[0.1, 1 / 3, -7.7, 1e3]]), T, 0)
    bound = bound_of(x, w_qk, w_vo)
    zeros = (
        bound.max_d,
        bound.cubic,
        bound.unconditional,
        bound.sharp,
        bound.linear,
        bound.residual_in,
        bound.residual_out,
    )
    assert zeros == (0,) * 7
    assert bound.gamma == 1 and bound.holds and bound.dobrushin == pytest.approx(0, abs=1e-12)


def test_huge_scores_overflow_to_no_statement():
    x, w_qk, w_vo = random_head()
    bound = bound_of(x, 1e6 * w_qk, w_vo)
    assert bound.unconditional == math.inf and bound.row()["unconditional"] is None
    assert math.isfinite(bound.sharp) and bound.violated == ()
    assert bound_of(x, 1e6 * w_qk, 0 * w_vo).unconditional == 0


def test_patterns_in_single_precision_are_judged_with_their_rounding():
    x, w_qk, w_vo = random_head(size=1e-6)
    x = x + 10
    pattern = torch.softmax(torch.from_numpy(0.5 * x @ w_qk @ x.T).float(), -1)
    bound = head_bound(
        torch.from_numpy(x),
        pattern,
        torch.from_numpy(w_qk),
        torch.from_numpy(w_vo),
        0.5,
        applicable=True,
    )
    exact = bound_of(x, w_qk, w_vo)
    assert bound.residual_out > bound.sharp > exact.residual_out  # what is left is rounding …
    assert bound.violated == () and bound.rounding > bound.residual_out  # … and known to be


def test_a_layer_is_the_sum_of_its_heads():
    rng = np.random.default_rng(5)
    x, w_qk, w_vo = (
        0.05 * rng.normal(size=(6, 3)),
        rng.normal(size=(4, 3, 3)),
        rng.normal(size=(4, 3, 3)),
    )
    patterns = numpy_softmax(x @ w_qk @ x.T)
    layer = layer_bound(
        *(torch.from_numpy(a) for a in (x, patterns, w_qk, w_vo)), 1.0, applicable=True
    )
    out = sum(patterns[h] @ x @ w_vo[h] for h in range(4))
    heads = [bound_of(x, w_qk[h], w_vo[h], 1.0) for h in range(4)]
    assert layer.residual_out == pytest.approx(norm_1_inf(out - out.mean(0)), rel=1e-9)
    for name in ("cubic", "unconditional", "sharp", "linear"):
        assert getattr(layer, name) == pytest.approx(sum(getattr(h, name) for h in heads))
    beta = max(np.abs(w_qk[h]).sum(0).max() * norm_1_inf(w_vo[h]) for h in range(4))
    assert layer.published == pytest.approx(
        4 * max(h.gamma for h in heads) * beta * 4 * norm_1_inf(x - x.mean(0)) ** 3
    )
    assert layer.published >= layer.cubic
    assert layer.row()["number_of_heads"] == 4


def test_bad_input_is_said():
    x, p, w = torch.randn(3, 2), torch.full((3, 3), 1 / 3), torch.eye(2)
    for arguments, words in (
        ((x[None], p, w, w), "tokens, channels"),
        ((x, p[:2], w, w), "pattern"),
        ((x, p, torch.eye(3), w), "weight_qk"),
        ((x, p, w, torch.eye(3)), "weight_vo"),
        ((x, 0.5 * p, w, w), "sums to 0.5"),
        ((x * torch.nan, p, w, w), "finite"),
    ):
        with pytest.raises(EigenlensError, match=words):
            head_bound(*arguments, 1.0, applicable=True)
    with pytest.raises(EigenlensError, match="scores"):
        head_bound(x, p, w, w, 1.0, applicable=False, scores=p[:2])
    with pytest.raises(EigenlensError, match="every head"):
        layer_bound(x, p.expand(2, 3, 3), [w], [w], 1.0, applicable=True)
    with pytest.raises(EigenlensError, match="without heads"):
        layer_bound(x, p[None][:0], [], [], 1.0, applicable=True)


def test_composite_norm_in_batches():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    expected = [[norm_1_inf(m) for m in row] for row in x]
    assert composite_norm(torch.from_numpy(x)).numpy() == pytest.approx(np.array(expected))
