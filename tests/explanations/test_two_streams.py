"""Relevance where a model has two streams, or a memory from outside."""

import pytest
import torch
import transformers as tf
from torch import nn

from captures.families import build, inputs
from eigenlens import EigenlensError, load
from eigenlens.explanations import attribute, observe, target_of
from eigenlens.explanations.propagation import (
    cross_update,
    relevance,
    relevance_by_stream,
)
from eigenlens.explanations.steps import steps_of
from eigenlens.explanations.target import Target


def test_a_third_stream_comes_through_the_second():
    R = {
        ("a", "a"): torch.eye(2)[None],
        ("b", "b"): torch.eye(3)[None],
        ("b", "c"): torch.rand(1, 3, 4),
    }
    A = torch.rand(1, 2, 3)
    torch.testing.assert_close(cross_update(R, "a", "b", A)["a", "c"], A @ R["b", "c"])


class Side(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def within(self, x):
        return x + self.self_attn(x, x, x, need_weights=False)[0]

    def forward(self, x, y):
        return x + self.cross_attn(x, y, y, need_weights=False)[0]


class TwoStreams(nn.Module):
    """Words and patches, which attend to themselves and then to each other in every layer."""

    def __init__(self):
        super().__init__()
        self.words, self.patches = (nn.ModuleList(Side() for _ in range(2)) for _ in range(2))

    def forward(self, x):
        words, patches = x[:, :4], x[:, 4:]
        for left, right in zip(self.words, self.patches):
            words, patches = left.within(words), right.within(patches)
            words, patches = left(words, patches), right(patches, words)
        return words.mean(1) + patches.mean(1)


def test_two_streams_that_attend_to_each_other():
    model, x = load(TwoStreams().eval()), torch.randn(3, 9, 8)
    seen = observe(model, {"x": x}, target_of(model, {"x": x}, target=2))
    kinds = [(step.queries, step.keys) for step in steps_of(seen)]
    layer = [("words", "words"), ("patches", "patches"), ("words", "patches"), ("patches", "words")]
    assert kinds == layer * 2
    found = relevance_by_stream(seen)
    assert {name: tuple(r.shape) for name, r in found.items()} == {
        "words": (3, 4),
        "patches": (3, 5),
    }
    assert torch.equal(relevance(seen), found["words"])
    others = attribute(model, {"x": x}, target_of(model, {"x": x}, target=2))
    assert len(others) == 7 and all(
        r.shape == (3, 4) and bool(torch.isfinite(r).all()) for r in others.values()
    )
    for b in range(3):
        alone = {name: r[0] for name, r in relevance_by_stream(_one(model, x[b : b + 1])).items()}
        for name, r in alone.items():
            torch.testing.assert_close(found[name][b], r, rtol=1e-4, atol=1e-6)


def _one(model, x):
    return observe(model, {"x": x}, target_of(model, {"x": x}, target=2))


def test_two_towers_without_a_bridge():
    """CLIP's text and picture are streams of their own; each has the map of its own attentions."""
    model, given = build("clip"), inputs("clip")
    target = Target(
        "similarity", "pair", lambda out, _: (out.text_embeds * out.image_embeds).sum(1)
    )
    found = relevance_by_stream(observe(load(model), given, target))
    assert {tuple(r.shape) for r in found.values()} == {(3, 13), (3, 17)}
    assert all(bool(torch.isfinite(r).all()) and float(r.sum()) > 0 for r in found.values())


def test_a_decoder_whose_memory_comes_from_outside():
    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = nn.TransformerDecoder(
                nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2
            )

        def forward(self, x):
            return self.decoder(x[:, :3], x[:, 3:]).mean(1)

    model, x = load(Reading().eval()), torch.randn(2, 8, 8)
    found = relevance_by_stream(_one(model, x))
    assert {name: tuple(r.shape) for name, r in found.items()} == {
        "decoder": (2, 3),
        "decoder.memory": (2, 5),
    }


def test_windows_have_no_one_map():
    config = tf.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=4
    )
    model, given = load(tf.SwinModel(config).eval()), {"pixel_values": torch.randn(2, 3, 32, 32)}
    target = Target("output", "norm", lambda out, _: out.last_hidden_state.square().sum((1, 2)))
    with pytest.raises(EigenlensError, match="attend within windows"):
        observe(model, given, target)
