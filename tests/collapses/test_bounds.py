"""No bound is ever exceeded where it claims to hold: by random heads, masked ones and real ones."""

import math
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collapses.heads import norm_1_inf, precise, softmax
from eigenlens.collapses.bounds import deviation, head_bound, mean_factor, residual, spread
from eigenlens.collapses.bounds_depth import depth_bound, layer_norms
from eigenlens.collapses.bounds_layers import layer_bound
from eigenlens.models.load import load

DIGITS = 1e-65  # what 80 digits leave of the largest numbers here
many = settings(
    max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
fewer = settings(many, max_examples=300)


@dataclass
class Instance:
    x: np.ndarray  # (T, C)
    w_qk: np.ndarray  # (H, C, C)
    w_vo: np.ndarray  # (H, C, C)
    scale: float
    of_query: np.ndarray  # (H, T): a bias of the keys adds a term to every row
    of_key: np.ndarray  # (H, T): a bias of the queries adds a term to every column


@st.composite
def instances(draw, most_heads=3):
    T, C, H = draw(st.integers(1, 12)), draw(st.integers(1, 8)), draw(st.integers(1, most_heads))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = [10.0 ** draw(st.floats(-6, 3)) for _ in range(5)]
    r = size[0] * rng.normal(size=(T, C))
    shape = draw(
        st.sampled_from(
            ["plain", "all equal", "some equal", "one apart", "whole numbers", "sparse"]
        )
    )
    if shape == "all equal":
        r[:] = r[0]
    elif shape == "some equal":
        r[: T // 2 + 1] = r[0]
    elif shape == "one apart":
        r[1:] = 0
    elif shape == "whole numbers":
        r = rng.integers(-2, 3, size=(T, C)) * size[0]
    elif shape == "sparse":
        r *= rng.random((T, C)) < 0.3
    x = size[1] * rng.normal(size=C) + r
    w_qk, w_vo = size[2] * rng.normal(size=(H, C, C)), size[3] * rng.normal(size=(H, C, C))
    terms = rng.normal(size=(2, H, T)) * draw(st.sampled_from([0.0, 1.0, size[4]]))
    return Instance(x, w_qk, w_vo, draw(st.sampled_from([1.0, C**-0.5])), *terms)


def precise_head(case, h):
    """Residual of the head's output about its mean `(T, C)`, and about the theorem's row `c = (x +
    Rᵀq)ᵀ W`.
    """
    x, w_qk, w_vo = precise(case.x), precise(case.w_qk[h]), precise(case.w_vo[h])
    scale, u, v = mpmath.mpf(case.scale), precise(case.of_query[h]), precise(case.of_key[h])
    centre = x.sum(0) / len(x)
    p = softmax(scale * (x @ w_qk @ x.T) + u[:, None] + v[None])
    q = softmax((scale * (centre @ w_qk @ (x - centre).T) + v)[None])[0]
    out = p @ x @ w_vo
    return out - out.sum(0) / len(x), out - (centre + q @ (x - centre)) @ w_vo


def float_patterns(case):
    scores = (
        case.scale * case.x @ case.w_qk @ case.x.T
        + case.of_query[:, :, None]
        + case.of_key[:, None]
    )
    scores = torch.from_numpy(scores)
    return torch.softmax(scores, -1), scores


@pytest.mark.slow
@many
@given(instances())
def test_no_violation_in_a_thousand_random_instances(case):
    patterns, _ = float_patterns(case)
    x, w_qk, w_vo = (torch.from_numpy(a) for a in (case.x, case.w_qk, case.w_vo))
    layer = layer_bound(x, patterns, w_qk, w_vo, case.scale, applicable=True)
    assert layer.violated == ()
    T, C = case.x.shape
    total_mean, total_best = 0, 0
    for h, bound in enumerate(layer.heads):
        about_mean, about_best = precise_head(case, h)
        total_mean, total_best = total_mean + about_mean, total_best + about_best
        of_mean, of_best = norm_1_inf(about_mean), norm_1_inf(about_best)
        r = np.abs(residual(x).numpy())
        # E = R W Rᵀ may cancel to less than the rounding of its own terms; D is known no better
        # than this
        of_d = 1e-14 * C * case.scale * (r @ np.abs(case.w_qk[h]) @ r.T).max()
        slack = math.sqrt(T) * of_d * bound.residual_in * norm_1_inf(case.w_vo[h]) + DIGITS
        assert bound.violated == ()
        assert bound.holds == (bound.max_d <= 1.256)
        assert (bound.cubic is None) == (not bound.holds)
        published = 4 * bound.gamma * bound.beta * case.scale * bound.residual_in**3
        norms = layer_norms([w_qk[h]], [w_vo[h]], case.scale)
        assert bound.max_d <= norms.scale * norms.qk[0] * bound.residual_in**2 * (1 + 1e-9)
        assert (
            of_mean
            <= mpmath.exp(depth_bound(bound.residual_in, [norms], T).sharp[1]) * (1 + 1e-9) + slack
        )
        for of in (of_mean, of_best):
            assert of <= published * (1 + 1e-9) + slack  # whether or not max D ≤ 1.256
            assert of <= bound.unconditional * (1 + 1e-9) + slack
        assert of_mean <= bound.sharp * (1 + 1e-9) + slack
        if T > 1:
            assert of_best <= bound.sharp / mean_factor(T) * (1 + 1e-9) + slack
        assert of_mean <= bound.linear * (1 + 1e-9) + bound.rounding + DIGITS
        assert bound.range_out <= bound.dobrushin * bound.range_in * (1 + 1e-9) + bound.rounding
        assert 1 <= bound.gamma <= math.sqrt(T) * (1 + 1e-12)
        assert abs(bound.residual_out - of_mean) <= 1e-9 * of_mean + bound.rounding + DIGITS
    slack = layer.rounding + DIGITS
    for name in ("cubic", "published", "unconditional", "sharp", "linear"):
        value = getattr(layer, name)
        assert value is None or norm_1_inf(total_mean) <= value * (1 + 1e-9) + slack
        assert (
            value is None
            or name in ("sharp", "linear")
            or norm_1_inf(total_best) <= value * (1 + 1e-9) + slack
        )


@fewer
@given(
    instances(most_heads=1),
    st.sampled_from(["causal", "random mask", "same keys", "bias", "huge bias"]),
    st.booleans(),
)
def test_no_violation_with_masks_and_biases(case, kind, from_pattern):
    """Only what the true scores allow is claimed.

    Nothing but Dobrushin's bound where rows see different keys.
    """
    T = len(case.x)
    _, scores = float_patterns(case)
    rng = np.random.default_rng(T)
    allowed = torch.ones(T, T, dtype=torch.bool)
    if kind == "causal":
        allowed = allowed.tril()
    elif kind == "random mask":
        allowed = torch.from_numpy(rng.random((T, T)) < 0.5) | torch.eye(T, dtype=torch.bool)
    elif kind == "same keys":
        allowed = torch.arange(T)[None].expand(T, T) >= T // 3
    bias = {"bias": 1.0, "huge bias": 1e4}.get(kind, 0.0) * torch.from_numpy(
        rng.normal(size=(T, T))
    )
    scores = (scores[0] + bias).masked_fill(~allowed, -torch.inf)
    x, w_qk, w_vo = (torch.from_numpy(a) for a in (case.x, case.w_qk[0], case.w_vo[0]))
    pattern = torch.softmax(scores, -1)
    given_scores = None if from_pattern else scores
    bound = head_bound(x, pattern, w_qk, w_vo, case.scale, applicable=False, scores=given_scores)
    assert bound.cubic is None and not bound.holds
    rows = [set(np.flatnonzero(row)) for row in (pattern > 0 if from_pattern else allowed).numpy()]
    assert (
        (bound.unconditional is None)
        == (bound.sharp is None)
        == any(row != rows[0] for row in rows)
    )
    assert bound.violated == ()
    if bound.sharp is not None:  # the score-based E bounds the pattern itself, row by row
        e, seen = deviation(pattern.log() if from_pattern else scores)
        p, s, m = (
            pattern.numpy(),
            (pattern.log() if from_pattern else scores).numpy(),
            seen[0].numpy(),
        )
        r = (s - e.numpy())[0][m]  # the scores less E are row constants + 1rᵀ
        q = np.exp(r - r.max()) / np.exp(r - r.max()).sum()
        distance = np.abs(p[:, m] - q).sum(1)
        assert (
            distance
            <= 2 * np.tanh(spread(e, seen).numpy() / 4) + 1e-12 * (1 + np.abs(s[:, m]).max())
        ).all()


def test_no_head_of_a_real_bert_breaks_a_bound():
    """MiniLM in double precision, pattern and scores by hand.

    The layer's output is that of its own module.
    """
    model = load("minilm").module.double()
    ids = torch.arange(1000, 1024)[None]
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    H, C = model.config.num_attention_heads, model.config.hidden_size
    scale = (C // H) ** -0.5
    for layer, block in enumerate(model.encoder.layer):
        own, dense, x = block.attention.self, block.attention.output.dense, states[layer][0]
        q, k, v = (
            part.weight.reshape(H, C // H, C).detach() for part in (own.query, own.key, own.value)
        )
        o = dense.weight.reshape(C, H, C // H).detach()
        w_qk, w_vo = [q[h].T @ k[h] for h in range(H)], [(o[:, h] @ v[h]).T for h in range(H)]
        with torch.no_grad():
            queries, keys = (
                part(x).reshape(-1, H, C // H).transpose(0, 1) for part in (own.query, own.key)
            )
            scores = scale * queries @ keys.transpose(1, 2)
            out = dense(own(states[layer])[0][0]).numpy()
        patterns = torch.softmax(scores, -1)
        by_weights = layer_bound(x, patterns, iter(w_qk), iter(w_vo), scale, applicable=True)
        by_scores = layer_bound(x, patterns, None, w_vo, scale, applicable=False, scores=scores)
        assert by_weights.violated == by_scores.violated == ()
        assert all(head.violated == () for head in (*by_weights.heads, *by_scores.heads))
        assert by_weights.residual_out == pytest.approx(norm_1_inf(out - out.mean(0)), rel=1e-6)
        assert [h.max_d for h in by_weights.heads] == pytest.approx(
            [h.max_d for h in by_scores.heads], rel=1e-6
        )
        assert by_scores.cubic is None and by_scores.published is None
