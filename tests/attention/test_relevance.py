"""Head relevance against a loop, and against torch's own multi-head attention."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from eigenlens.attention.relevance import (
    evenness,
    head_relevance,
    head_terms,
    relevance_map,
    token_median,
)

B, H, T, E, C = 3, 4, 9, 5, 8


def drawn():
    torch.manual_seed(0)
    return torch.randn(B, H, T, E), torch.randn(H, E, C)


def test_relevance_is_the_share_of_the_l1_norms_and_sums_to_one():
    z, w_o = drawn()
    c = head_relevance(z, w_o)
    assert c.shape == (B, H, T)
    for b in range(B):
        for t in range(T):
            sizes = np.array([np.abs(z[b, h, t].numpy() @ w_o[h].numpy()).sum() for h in range(H)])
            np.testing.assert_allclose(c[b, :, t].numpy(), sizes / sizes.sum(), rtol=1e-5)
    torch.testing.assert_close(c.sum(1), torch.ones(B, T))


def test_the_terms_of_the_heads_and_the_bias_are_the_output_of_the_layer():
    torch.manual_seed(0)
    width = H * E
    layer = nn.MultiheadAttention(width, H, batch_first=True)
    nn.init.normal_(layer.out_proj.bias)
    x = torch.randn(B, T, width)
    out, A = layer(x, x, x, average_attn_weights=False)
    v = (
        (x @ layer.in_proj_weight[2 * width :].T + layer.in_proj_bias[2 * width :])
        .unflatten(2, (H, E))
        .transpose(1, 2)
    )
    w_o = layer.out_proj.weight.T.unflatten(0, (H, E))
    torch.testing.assert_close(
        head_terms(A @ v, w_o).sum(1) + layer.out_proj.bias, out, atol=1e-5, rtol=1e-5
    )


def test_where_no_head_contributes_all_count_alike_and_gradients_are_finite():
    z, w_o = drawn()
    z[1, :, 4] = 0
    z.requires_grad_()
    c = head_relevance(z, w_o)
    torch.testing.assert_close(c[1, :, 4], torch.full((H,), 1 / H))
    c.square().sum().backward()
    assert torch.isfinite(c).all() and torch.isfinite(z.grad).all()


def test_the_map_is_the_median_over_tokens_and_then_over_inputs():
    z, w_o = drawn()
    tokens = torch.ones(B, T, dtype=torch.bool)
    tokens[0, 4:], tokens[2, :3] = False, False
    layers = [
        head_relevance(z, w_o),
        head_relevance(z * torch.arange(1, H + 1)[:, None, None], w_o),
    ]
    found = relevance_map(layers, tokens)
    for layer, c in enumerate(layers):
        for h in range(H):
            each = [np.median(c[b, h][tokens[b]].numpy()) for b in range(B)]
            assert float(found[layer, h]) == pytest.approx(float(np.median(each)), rel=1e-5)
    torch.testing.assert_close(
        token_median(layers[0]), torch.from_numpy(np.median(layers[0].numpy(), 2))
    )


def test_evenness_is_the_entropy_over_its_largest_value():
    c = torch.tensor([0.5, 0.25, 0.125, 0.125])
    by_hand = -sum(p * math.log(p) for p in c.tolist()) / math.log(4)
    assert float(evenness(c)) == pytest.approx(by_hand, rel=1e-6)
    # medians do not sum to one: shares do
    assert float(evenness(3 * c)) == pytest.approx(by_hand, rel=1e-6)
    assert float(evenness(torch.full((7,), 1 / 7))) == pytest.approx(1.0)
