"""The torch backend: modules outside the transformers library."""

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

from eigenlens.captures import AttentionNotSeen, Site, capture


class TimmAttention(nn.Module):
    """Fused qkv projection, as vision transformers of the timm style have it."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(B, N, 3, self.heads, C // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))

    def dense(self, x):
        B, N, C = x.shape
        q, k, _ = (
            self.qkv(x)
            .reshape(B, N, 3, self.heads, C // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        return (q @ k.transpose(2, 3) / (C // self.heads) ** 0.5).softmax(-1)


class CausalAttention(nn.Module):
    """As nanoGPT writes it: c_attn, is_causal."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.c_attn = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.c_attn(x).split(C, 2))
        return (
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        )

    def dense(self, x):
        B, T, C = x.shape
        q, k, _ = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.c_attn(x).split(C, 2))
        scores = q @ k.transpose(2, 3) / (C // self.heads) ** 0.5
        return scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)


class Stack(nn.Module):
    def __init__(self, block, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(depth))

    def forward(self, x):
        self.seen = []
        for block in self.blocks:
            self.seen.append(x)
            x = x + block(x)
        return x


@torch.no_grad()
@pytest.mark.parametrize("block", [TimmAttention, CausalAttention])
def test_pattern_equals_the_dense_formula(block):
    model, x = Stack(block).eval(), torch.randn(2, 9, 32) * 3
    with capture(model) as calls:
        model(x)
    assert [call.site for call in calls] == [Site("self", layer) for layer in range(3)]
    for call, block, given in zip(calls, model.blocks, model.seen):
        torch.testing.assert_close(call.pattern(), block.dense(given), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_multihead_attention_gives_its_own_weights(batch_first, padded):
    mha = nn.MultiheadAttention(32, 4, batch_first=batch_first).eval()
    x = torch.randn(5, 5, 32)
    padding = torch.zeros(5, 5, dtype=torch.bool)
    padding[1, 3:] = padded
    _, theirs = mha(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    with capture(mha) as calls:
        _, returned = mha(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    (call,) = calls
    real = ~padding
    rows = real[:, None, :].expand(5, 4, 5)
    torch.testing.assert_close(call.pattern()[rows], theirs[rows], atol=1e-5, rtol=0)
    torch.testing.assert_close(returned[rows], theirs[rows], atol=1e-5, rtol=0)
    assert torch.equal(call.valid().any(-1)[:, 0].expand(5, 5), real)


@torch.no_grad()
def test_torch_transformer_with_cross_attention_and_causal_mask():
    model = nn.Transformer(32, 4, 2, 2, 64, batch_first=True).eval()
    source, target = torch.randn(2, 7, 32), torch.randn(2, 5, 32)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    plain = model(source, target, tgt_mask=causal)
    with capture(model) as calls:
        out = model(source, target, tgt_mask=causal)
    torch.testing.assert_close(out, plain, atol=1e-5, rtol=1e-5)
    kinds = {
        str(call.site): (call.kind, call.mask_shape.form, tuple(call.pattern().shape))
        for call in calls
    }
    assert kinds == {
        **{f"encoder/{i}": ("self", "full", (2, 4, 7, 7)) for i in range(2)},
        **{f"decoder/{i}": ("self", "causal", (2, 4, 5, 5)) for i in range(2)},
        **{f"decoder.cross/{i}": ("cross", "full", (2, 4, 5, 7)) for i in range(2)},
    }


@torch.no_grad()
def test_an_additive_bias_is_part_of_the_scores():
    class Alibi(nn.Module):
        def forward(self, x):
            slope = -torch.arange(6.0).sub(torch.arange(6.0)[:, None]).abs()[None, None]
            return F.scaled_dot_product_attention(x, x, x, attn_mask=slope)

    x = torch.randn(2, 3, 6, 8)
    with capture(model := Alibi()) as calls:
        model(x)
    distance = (torch.arange(6.0)[None] - torch.arange(6.0)[:, None]).abs()
    torch.testing.assert_close(calls[0].scores(), x @ x.transpose(2, 3) / 8**0.5 - distance)
    assert not calls[0].linear


@torch.no_grad()
@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (tf.BloomModel, tf.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4)),
        (
            tf.DebertaV2Model,
            tf.DebertaV2Config(
                vocab_size=99,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
            ),
        ),
        (
            tf.GPTNeoModel,
            tf.GPTNeoConfig(
                vocab_size=99,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                attention_types=[[["global"], 2]],
            ),
        ),
        (tf.GPTJModel, tf.GPTJConfig(vocab_size=99, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)),
        (
            tf.MPNetModel,
            tf.MPNetConfig(
                vocab_size=99,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
            ),
        ),
    ],
)
def test_attention_that_cannot_be_seen_is_an_error(cls, config):
    model = cls(config).eval()
    with (
        pytest.raises(AttentionNotSeen, match=f"saw no attention call of {cls.__name__}"),
        capture(model),
    ):
        model(torch.randint(3, 99, (2, 7)))


def test_a_model_that_is_not_called_is_an_error():
    with pytest.raises(AttentionNotSeen, match="was not called"), capture(Stack(TimmAttention)):
        pass
