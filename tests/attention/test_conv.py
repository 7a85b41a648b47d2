"""Convolved attention.

Torch's own convolution and attention give the same, and the edges are where they should be.
"""

import pytest
import torch
import torch.nn.functional as F

from eigenlens.attention import Shape, make
from eigenlens.errors import EigenlensError

B, H, D = 2, 3, 4


def made(kernel=5, stride=2):
    torch.manual_seed(4)
    mechanism = make("conv", Shape(H), kernel=kernel, stride=stride)
    with torch.no_grad():
        for p in mechanism.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return mechanism


def inputs(n):
    torch.manual_seed(n)
    return [torch.randn(B, H, n, D) for _ in range(3)]


def by_torch(x, kernel, stride, before):
    """Head by head through conv1d, every feature as a sequence of its own."""
    w = kernel.shape[1]
    heads = []
    for h in range(H):
        sequences = F.pad(x[:, h].transpose(1, 2).reshape(B * D, 1, -1), (before, w - 1 - before))
        heads.append(
            F.conv1d(sequences, kernel[h].view(1, 1, w), stride=stride)
            .view(B, D, -1)
            .transpose(1, 2)
        )
    return torch.stack(heads, 1)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 2), (3, 3), (1, 1), (4, 2), (2, 5), (7, 1)])
@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_both_ways_it_is_torchs_convolution_and_torchs_attention(kernel, stride, n):
    mechanism, (q, k, v) = made(kernel, stride), inputs(n)
    short_k, short_v = (
        by_torch(x, w, stride, (kernel - 1) // 2)
        for x, w in ((k, mechanism.keys), (v, mechanism.values))
    )
    assert short_k.shape[2] == -(-n // stride)
    wanted = F.scaled_dot_product_attention(q, short_k, short_v)
    torch.testing.assert_close(mechanism(q, k, v), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 2), (3, 3), (1, 1), (2, 5)])
def test_causally_key_j_covers_the_tokens_up_to_js_and_is_seen_from_there(kernel, stride):
    mechanism, (q, k, v) = made(kernel, stride), inputs(17)
    short_k, short_v = (
        by_torch(x, w, stride, kernel - 1) for x, w in ((k, mechanism.keys), (v, mechanism.values))
    )
    found = mechanism(q, k, v, causal=True)
    for i in range(17):
        seen = i // stride + 1
        wanted = F.scaled_dot_product_attention(
            q[:, :, i : i + 1], short_k[:, :, :seen], short_v[:, :, :seen]
        )
        torch.testing.assert_close(found[:, :, i : i + 1], wanted, atol=1e-5, rtol=1e-5)


def test_a_hundred_tokens_become_fifty_keys():
    mechanism, (q, k, _) = made().double(), (x.double() for x in inputs(100))
    assert len(mechanism._centres(k)) == 50 and mechanism._shortened(
        k, mechanism.keys, False
    ).shape == (B, H, 50, D)
    assert int(torch.linalg.matrix_rank(mechanism.weights(q, k))[0, 0]) <= 50


def test_it_starts_as_a_mean_of_the_covered_tokens():
    mechanism, (q, k, v) = make("conv", Shape(H), kernel=3, stride=3), inputs(9)
    # Key j is centred on token 3j and covers 3j−1 … 3j+1; before token 0 there is nothing.
    short = torch.stack([v[:, :, :2].sum(2) / 3, v[:, :, 2:5].mean(2), v[:, :, 5:8].mean(2)], 2)
    found = mechanism(torch.zeros_like(q), k, v)
    torch.testing.assert_close(
        found, short.mean(2, keepdim=True).expand_as(found), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("causal", [False, True])
def test_padding_counts_as_zeros_and_keys_of_nothing_else_are_masked(causal):
    mechanism, (q, k, v) = made(), inputs(20)
    keys = torch.ones(B, 20, dtype=torch.bool)
    keys[0, 8:] = False
    A = mechanism.weights(q, k, causal=causal, keys=keys).detach()
    assert float(A[0, :, :, 8:].abs().max()) == 0.0
    cut = mechanism(q[:1, :, :8], k[:1, :, :8], v[:1, :, :8], causal=causal)
    found = mechanism(q, k, v, causal=causal, keys=keys)[:1, :, :8]
    if causal:  # keys from token 8 on are seen by nobody before
        torch.testing.assert_close(found, cut, atol=1e-5, rtol=1e-5)
    else:
        # key 4 is centred on the first padded token and covers 6 and 7: the input alone has no such
        # key
        zeros = torch.zeros(1, H, 1, D)
        longer = [torch.cat([x[:1, :, :8], zeros], 2) for x in (q, k, v)]
        torch.testing.assert_close(found, mechanism(*longer)[:, :, :8], atol=1e-5, rtol=1e-5)


def test_one_token_and_a_cross_call_without_a_mask_work():
    mechanism, (q, k, v) = made(), inputs(1)
    assert (
        torch.isfinite(mechanism(q, k, v)).all()
        and torch.isfinite(mechanism(q, k, v, causal=True)).all()
    )
    assert mechanism(torch.randn(B, H, 3, D), *inputs(8)[1:]).shape == (B, H, 3, D)


def test_settings_that_cannot_be_are_refused():
    for settings in ({"kernel": 0}, {"stride": 0}):
        with pytest.raises(EigenlensError, match="at least 1"):
            make("conv", Shape(H), **settings)
