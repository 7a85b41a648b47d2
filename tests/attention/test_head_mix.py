"""A mechanism for each head: every head is what its mechanism gives alone."""

import pytest
import torch
from torch import nn

from eigenlens.attention import HeadMix, Mechanism, Shape, make
from eigenlens.attention.gates import Gated, GateSettings
from eigenlens.attention.softmax import Softmax
from eigenlens.errors import EigenlensError

B, H, T, D, C = 2, 4, 21, 6, 10


class Earlier(Mechanism):
    """The mean of what a query may see: a mechanism without scores, to tell members apart."""

    name = "earlier"
    linear = True

    def pattern(self, q, k, given):
        allowed = given.allowed(q, k)
        A = torch.ones(*q.shape[:3], k.shape[2], dtype=q.dtype)
        A = A if allowed is None else A * allowed
        return A / A.sum(3, keepdim=True).clamp_min(1)

    def fast(self, q, k, v, given):
        return self.pattern(q, k, given) @ v

    def cost(self, n, d):
        return n * d


class Backwards(Earlier):
    name = "backwards"
    directions = ("causal",)


class AllRound(Earlier):
    name = "all-round"
    directions = ("both ways",)


def drawn(G=H, T=T):
    torch.manual_seed(0)
    return [torch.randn(s) for s in ((B, H, T, D), (B, G, T, D), (B, G, T, D + 1), (B, T, C))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_each_group_of_heads_is_its_mechanism_alone(causal, padded):
    q, k, v, x = drawn(G=2)
    keys = torch.ones(B, T, dtype=torch.bool)
    keys[0, 15:] = False
    torch.manual_seed(1)
    gated = Gated(GateSettings(), Shape(1, D, C, value_width=D + 1))
    members = [(Softmax(), 1), (Earlier(), 2), (gated, 1)]
    terms = {"causal": causal, "keys": keys if padded else None}
    mix = HeadMix(members)
    whole, weights = mix(q, k, v, x=x, **terms), mix.weights(q, k, x=x, **terms)
    start = 0
    for member, count in members:
        heads = list(range(start, start + count))
        shared = [h // 2 for h in heads]  # two key-value heads for four
        alone = member(q[:, heads], k[:, shared], v[:, shared], x=x, **terms)
        torch.testing.assert_close(whole[:, heads], alone)
        torch.testing.assert_close(
            weights[:, heads], member.weights(q[:, heads], k[:, shared], x=x, **terms)
        )
        start += count
    torch.testing.assert_close(mix.reference(q, k, v, x=x, **terms), whole, atol=1e-5, rtol=1e-5)


def test_biases_of_each_head_reach_their_head():
    q, k, v, _ = drawn()
    bias = torch.randn(1, H, T, T)
    mix = HeadMix([(Softmax(), 1), (Softmax(), 3)])
    expected = torch.softmax(q @ k.transpose(2, 3) / D**0.5 + bias, 3) @ v
    torch.testing.assert_close(mix(q, k, v, pairs=bias), expected, atol=1e-5, rtol=1e-5)
    window = torch.ones(1, 1, T, T, dtype=torch.bool).tril(2).triu(-2)
    assert float(mix.weights(q, k, pairs=window).masked_fill(window, 0).abs().max()) == 0


def test_all_full_heads_are_torchs_multihead_attention():
    torch.manual_seed(0)
    width = 24
    theirs = nn.MultiheadAttention(width, H, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias), nn.init.normal_(theirs.out_proj.bias)
    x = torch.randn(B, T, width)
    q, k, v = (
        (x @ theirs.in_proj_weight.T + theirs.in_proj_bias)
        .unflatten(2, (3, H, width // H))
        .permute(2, 0, 3, 1, 4)
    )
    for causal in (False, True):
        mask = nn.Transformer.generate_square_subsequent_mask(T) if causal else None
        expected, weights = theirs(x, x, x, attn_mask=mask, average_attn_weights=False)
        mix = HeadMix([(Softmax(), 2), (Softmax(), 1), (Softmax(), 1)])
        out = theirs.out_proj(mix(q, k, v, causal=causal).transpose(1, 2).flatten(2))
        assert float((out - expected).abs().max()) < 1e-5
        torch.testing.assert_close(mix.weights(q, k, causal=causal), weights)


def paper_layer(kernel=5, stride=2, window=8):
    """Two local heads and two of convolution, as in the paper's configuration `lc`."""
    shape = Shape(2, D, C, 128)
    return HeadMix(
        [
            (make("local", shape, window=window), 2),
            (make("conv", shape, kernel=kernel, stride=stride), 2),
        ]
    )


def test_local_heads_are_zero_outside_their_window_and_the_others_are_not():
    q, k, v, _ = drawn(T=40)
    mechanism = paper_layer()
    A = mechanism.weights(q, k)
    place = torch.arange(40)
    far = (place[:, None] - place).abs() >= 8
    assert float(A[:, :2, far].abs().max()) == 0
    assert float(A[:, 2:, far].abs().min()) > 0


def test_a_hundred_tokens_under_a_stride_of_two_are_fifty_keys():
    """The pattern of a convolved head is P (100 × keys) times a convolution.

    No rank above the number of keys.
    """
    torch.manual_seed(0)
    q, k = (
        torch.randn(1, H, 100, 64, dtype=torch.float64),
        torch.randn(1, H, 100, 64, dtype=torch.float64),
    )
    A = paper_layer().double().weights(q, k)
    assert int(torch.linalg.matrix_rank(A[0, 2])) == 50
    assert int(torch.linalg.matrix_rank(A[0, 0])) > 50


def test_one_token_and_no_mask_give_numbers():
    for length in (1, 2):
        q, k, v, _ = drawn(T=length)
        mechanism = paper_layer()
        assert torch.isfinite(mechanism(q, k, v)).all()
        assert torch.isfinite(mechanism(q, k, v, causal=True)).all()
    torch.testing.assert_close(mechanism(*(t[:, :, :1] for t in (q, k, v)))[:, :2], v[:, :2, :1])


def test_what_a_mix_can_is_what_its_members_can():
    mix = HeadMix([(Softmax(), 3), (Earlier(), 1)])
    assert (mix.directions, mix.takes_pairs, mix.linear, mix.reads_stream, mix.own_weights) == (
        ("causal", "both ways"),
        False,
        False,
        False,
        False,
    )
    assert HeadMix([(Earlier(), 2), (Backwards(), 2)]).linear
    assert HeadMix([(Earlier(), 2), (Backwards(), 2)]).directions == ("causal",)
    gated = Gated(GateSettings(), Shape(2, D, C))
    assert (
        HeadMix([(gated, 2), (Softmax(), 2)]).reads_stream
        and HeadMix([(gated, 2), (Softmax(), 2)]).own_weights
    )
    assert HeadMix([(gated, 2), (Softmax(), 2)]).takes_pairs


def test_heads_times_the_cost_are_the_costs_of_all_heads():
    mix = HeadMix([(Softmax(), 3), (Earlier(), 1)])
    assert mix.total_cost(100, 8) == 3 * 2 * 100 * 100 * 8 + 100 * 8 == 4 * mix.cost(100, 8)


def test_what_cannot_be_a_mix_is_said():
    q, k, v, _ = drawn()
    with pytest.raises(EigenlensError, match="this mix has 3 heads, but the queries have 4"):
        HeadMix([(Softmax(), 3)])(q, k, v)
    with pytest.raises(EigenlensError, match="each group of a mix needs at least one head"):
        HeadMix([(Softmax(), 4), (Softmax(), 0)])
    with pytest.raises(EigenlensError, match="each group of a mix needs at least one head"):
        HeadMix([])
    with pytest.raises(
        EigenlensError,
        match=r"some must be causal and others cannot be: backwards \(causal\), all-round \(both ways\)",
    ):
        HeadMix([(Backwards(), 2), (AllRound(), 2)])
