"""The parts of the bound.

Slopes, singular values, and which blocks have one (the bound itself: test_over_smoothing).
"""

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

from eigenlens import EigenlensError
from eigenlens.anatomy import read_stacks
from eigenlens.diagnostics.smoothing_bound import PostNorm, _largest_of_pattern, largest_slope
from tiny import of_catalogue, small_bert, small_llama


def block(model, at=0):
    return read_stacks(model)[0].blocks[at]


@pytest.mark.parametrize(
    ("act", "slope"),
    [
        (nn.ReLU(), 1.0),
        (nn.GELU(), 1.13),
        (nn.GELU(approximate="tanh"), 1.13),
        (nn.SiLU(), 1.1),
        (torch.tanh, 1.0),
    ],
)
def test_the_steepest_slope_is_that_of_finite_differences(act, slope):
    x = torch.linspace(-6, 6, 200_001, dtype=torch.float64)
    y = act(x)
    largest = float(((y[1:] - y[:-1]) / (x[1] - x[0])).abs().max())
    assert largest_slope(act) == slope and slope - 0.01 < largest <= slope * (1 + 1e-9)


def test_an_activation_that_grows_steeper_has_no_bound():
    with pytest.raises(EigenlensError, match="grows steeper without end"):
        largest_slope(lambda x: x.relu().square())


def test_singular_values_are_numpys():
    model = of_catalogue("minilm")
    found = PostNorm(block(model.backbone, 2), 12, 12)
    layer = model.backbone.encoder.layer[2]
    V, O = (
        x.weight.detach().double().numpy()
        for x in (layer.attention.self.value, layer.attention.output.dense)
    )
    for head in (0, 11):
        product = V[head * 32 : head * 32 + 32].T @ O[:, head * 32 : head * 32 + 32].T
        assert float(found.each[head]) == pytest.approx(np.linalg.svd(product, compute_uv=False)[0])
    for value, part in ((found.wide, layer.intermediate.dense), (found.narrow, layer.output.dense)):
        assert value == pytest.approx(np.linalg.norm(part.weight.detach().double().numpy(), 2))
    assert found.s == max(float(found.each.max()), found.wide, found.narrow) and found.slope == 1.13
    gains = [
        norm.weight.detach().abs().max()
        for norm in (layer.attention.output.LayerNorm, layer.output.LayerNorm)
    ]
    assert found.gain == pytest.approx(float(gains[0] * gains[1]))


def test_the_largest_singular_value_of_long_patterns_is_close_from_below():
    P = (3 * torch.randn(1, 3, 300, 300, dtype=torch.float64)).softmax(3)
    P[0, 1] = P[0, 1].tril() / P[0, 1].tril().sum(1, keepdim=True)
    A = P - P.mean(2, keepdim=True)
    exact, found = torch.linalg.svdvals(A)[..., 0], _largest_of_pattern(A)
    assert bool((found <= exact * (1 + 1e-12)).all()) and bool((found >= 0.98 * exact).all())
    # one direction stands out, as in trained heads
    assert float(found[0, 1]) == pytest.approx(float(exact[0, 1]), rel=1e-6)


def test_blocks_of_other_builds_have_none():
    with pytest.raises(EigenlensError, match="for post-norm blocks with skips"):
        PostNorm(block(small_llama().model), 4, 2)
    config = tf.BartConfig(
        vocab_size=50,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )
    encoder, decoder = read_stacks(tf.BartModel(config).eval())
    assert PostNorm(encoder.blocks[0], 2, 2).s > 0
    # it has a cross-attention between the two
    with pytest.raises(EigenlensError, match="for post-norm blocks"):
        PostNorm(decoder.blocks[0], 2, 2)
    bert = small_bert()
    del bert.encoder.layer[0].intermediate.intermediate_act_fn
    bert.encoder.layer[0].intermediate.intermediate_act_fn = torch.square
    with pytest.raises(EigenlensError, match="bounded slope"):
        PostNorm(block(bert), 4, 4)
