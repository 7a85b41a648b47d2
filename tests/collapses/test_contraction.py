"""Full attention contracts with order 3, masked and biased attention with order 1, in random heads
and in real ones.
"""

import math

import numpy as np
import pytest
import torch

from eigenlens.collapses.contraction import contraction_order, head_order, slope_of
from eigenlens.errors import EigenlensError
from eigenlens.models.load import load


@pytest.mark.parametrize("tokens, channels", [(2, 1), (5, 3), (16, 8), (32, 4)])
@pytest.mark.parametrize("kind, order", [("full", 3.0), ("causal", 1.0), ("position bias", 1.0)])
def test_the_order_of_contraction(kind, order, tokens, channels):
    measured = contraction_order(kind, tokens=tokens, channels=channels, instances=20)
    assert len(measured.slopes) == 20
    assert measured.mean == pytest.approx(order, abs=0.02)
    assert max(abs(slope - order) for slope in measured.slopes) < 0.05
    row = measured.row()
    assert (row["kind"], row["instances"]) == (kind, 20) and row["low"] <= row["order"] <= row[
        "high"
    ]


def test_the_seed_decides():
    first, again, other = (
        contraction_order("full", instances=2, seed=seed).slopes for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize("power", [1, 2, 3, 5])
def test_the_slope_of_a_known_power(power):
    direction = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3)))
    assert slope_of(lambda r: 7 + r**power, direction, [1.0, 0.3, 0.1, 0.03]) == pytest.approx(
        power, abs=1e-6
    )


def numpy_slope(x, w_qk, w_vo, scale, bias, epsilons):
    """The same slope from whole inputs `1xᵀ + εR` and `numpy.polyfit`."""
    mean = x.mean(0)
    out = []
    for epsilon in epsilons:
        y = mean + epsilon * (x - mean)
        s = scale * y @ w_qk @ y.T + bias
        p = np.exp(s - s.max(1, keepdims=True))
        z = p / p.sum(1, keepdims=True) @ y @ w_vo
        z = np.abs(z - z.mean(0))
        out.append(0.5 * np.log(z.sum(0).max() * z.sum(1).max()))
    return np.polyfit(np.log(epsilons), out, 1)[0]


@pytest.mark.parametrize("kind", ["full", "causal"])
def test_the_slope_is_that_of_the_whole_head(kind):
    rng = np.random.default_rng(4)
    x, w_qk, w_vo = rng.normal(size=(7, 3)), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    r = x - x.mean(0)
    along, e = 0.6 * x.mean(0) @ w_qk @ r.T, 0.6 * r @ w_qk @ r.T
    # at ε = 1 no two scores of a row differ by more
    size = max(np.ptp(along), math.sqrt(np.ptp(e, axis=1).max()))
    bias = np.triu(np.full((7, 7), -np.inf), 1) if kind == "causal" else np.zeros((7, 7))
    epsilons = [0.3, 0.1, 0.03, 0.01]  # large enough that the slope is not just a whole number
    expected = numpy_slope(x.mean(0) + r / size, w_qk, w_vo, 0.6, bias, epsilons)
    tensors = (torch.from_numpy(a) for a in (x, w_qk, w_vo))
    measured = head_order(*tensors, 0.6, bias=torch.from_numpy(bias), epsilons=epsilons)
    assert abs(expected - round(expected)) > 1e-4
    assert measured == pytest.approx(expected, abs=1e-7)


def test_a_head_without_scores_leaves_nothing():
    """`W_QK = 0`: every token becomes the mean at once.

    What is left is rounding, and must not pass for order 1.
    """
    rng = np.random.default_rng(0)
    x, w = torch.from_numpy(rng.normal(size=(9, 4))), torch.from_numpy(rng.normal(size=(4, 4)))
    assert head_order(x, 0 * w, w, 1.0) == math.inf
    assert head_order(x, w, 0 * w, 1.0) == math.inf
    assert head_order(x[:1].expand(9, 4), w, w, 1.0) == math.inf
    assert head_order(x[:1], w, w, 1.0) == math.inf
    causal = torch.full((9, 9), -torch.inf).triu(1)
    assert head_order(x, 0 * w, w, 1.0, bias=causal) == pytest.approx(1, abs=1e-9)


def test_every_head_of_a_real_bert_is_cubic_and_would_be_linear_behind_a_mask():
    """MiniLM has positions in its embeddings only.

    Its scores are products, up to the biases of the projections.
    """
    model = load("minilm")
    tokens = model.tokenizer(
        "The order of contraction is measured about the mean of a real text.", return_tensors="pt"
    )
    with torch.no_grad():
        states = model.module(**tokens, output_hidden_states=True).hidden_states
    H = model.module.config.num_attention_heads
    for layer in (0, 5):
        attention = model.module.encoder.layer[layer].attention
        own = attention.self
        x, C = states[layer][0].double(), states[layer].shape[-1]
        q, k, v = (
            part.weight.double().reshape(H, C // H, C) for part in (own.query, own.key, own.value)
        )
        o = attention.output.dense.weight.double().reshape(C, H, C // H)
        key_terms = torch.einsum("hd,hdc->hc", own.query.bias.double().reshape(H, C // H), k)
        causal = torch.full((len(x), len(x)), -torch.inf).triu(1)
        for h in range(H):
            head = (x, q[h].T @ k[h], (o[:, h] @ v[h]).T, (C // H) ** -0.5)
            assert head_order(*head, key_term=key_terms[h]) == pytest.approx(3, abs=0.05)
            assert head_order(*head, key_term=key_terms[h], bias=causal) == pytest.approx(
                1, abs=0.05
            )


def test_bad_input_is_said():
    with pytest.raises(EigenlensError, match="'sideways'"):
        contraction_order("sideways")
    with pytest.raises(EigenlensError, match="at least 2 tokens"):
        contraction_order("full", tokens=1)
    with pytest.raises(EigenlensError, match="two weights"):
        head_order(torch.zeros(3, 2), torch.eye(3), torch.eye(2), 1.0)
