"""The stream of tokens at every block, in every family, by both backends."""

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

from captures.families import FAMILIES, build, inputs
from eigenlens import EigenlensError
from eigenlens.captures import Site, attention_names, block_paths, capture, capture_layers

LAYERS = {f"encoder.layer.{i}.attention.self": "self" for i in range(12)}


@pytest.mark.parametrize(
    ("names", "blocks"),
    [
        (LAYERS, [f"encoder.layer.{i}" for i in range(12)]),
        (
            {"encoder.albert_layer_groups.0.albert_layers.0.attention": "self"},
            ["encoder.albert_layer_groups.0"],
        ),
        (
            {
                "decoder.block.0.layer.0.SelfAttention": "self",
                "decoder.block.0.layer.1.EncDecAttention": "cross",
                "decoder.block.1.layer.0.SelfAttention": "self",
                "decoder.block.1.layer.1.EncDecAttention": "cross",
            },
            ["decoder.block.0", "decoder.block.0", "decoder.block.1", "decoder.block.1"],
        ),
        # a stage of one block beside a stage of two: blocks lie at one depth
        (
            {
                "layers.0.blocks.0.attn": "self",
                "layers.1.blocks.0.attn": "self",
                "layers.1.blocks.1.attn": "self",
            },
            ["layers.0.blocks.0", "layers.1.blocks.0", "layers.1.blocks.1"],
        ),
        # one name may be the beginning of another
        ({"h.1.attn": "self", "h.10.attn": "self"}, ["h.1", "h.10"]),
        # two self-attentions in one block have no prefix of their own
        ({"h.0.first": "self", "h.0.second": "self", "h.1.first": "self"}, ["h.0", "h.0", "h.1"]),
        # blocks that only look across
        ({"layers.0.attn": "self", "layers.1.cross_attn": "cross"}, ["layers.0", "layers.1"]),
        ({"a.attn": "self", "a.h.3.attn": "self"}, [None, "a.h.3"]),
    ],
)
def test_blocks_are_found_in_the_names(names, blocks):
    found = block_paths(names)
    assert [found.get(name) for name in names] == blocks


def layers_of(model, run, **options):
    """What the blocks see in one pass, and how many calls were handed on beside."""
    with capture(model, **options) as calls:
        run()
    seen = []
    with capture_layers(model, attention_names(calls), calls=seen.append, **options) as layers:
        run()
    assert [call.site for call in seen] == [call.site for call in calls]
    return layers, calls


def own_streams(model, given):
    """What the model itself says its blocks take, by stack in the order of running."""
    out = model(**given, output_hidden_states=True)
    if hasattr(out, "text_model_output"):
        vision, text = out.vision_model_output.hidden_states, out.text_model_output.hidden_states
        return {"vision_model.encoder": vision, "text_model.encoder": text}
    if getattr(out, "hidden_states", None) is not None:
        return {None: out.hidden_states}
    return {"encoder": out.encoder_hidden_states, "decoder": out.decoder_hidden_states}


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name):
    """Inputs and outputs are the model's own hidden states.

    Calls lie in their blocks, padding is marked.
    """
    model, given = build(name), inputs(name, "right")
    layers, calls = layers_of(model, lambda: model(**given))
    assert [layer.site for layer in layers] == [call.site for call in calls if call.kind == "self"]
    assert [call.site for layer in layers for call in layer.calls] == [call.site for call in calls]
    for stack, streams in own_streams(model, given).items():
        mine = [layer for layer in layers if stack in (None, layer.site.stack)]
        assert len(mine) == len(streams) - 1
        real = (
            mine[0].valid
            if mine[0].valid is not None
            else torch.ones(mine[0].inputs.shape[:2], dtype=torch.bool)
        )
        for i, layer in enumerate(mine):
            torch.testing.assert_close(layer.inputs[real], streams[i][real], atol=1e-4, rtol=1e-4)
            if i:
                assert layer.inputs is mine[i - 1].outputs
    for layer in layers:
        side = (
            "decoder_attention_mask"
            if layer.site.stack == "decoder" and name != "opt"
            else "attention_mask"
        )
        if layer.site.stack == "vision_model.encoder" or side not in given:
            assert layer.valid is None
        else:
            assert torch.equal(layer.valid, given[side].bool())


@torch.no_grad()
def test_a_window_model_has_its_inner_blocks():
    config = tf.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=4
    )
    model = tf.SwinModel(config).eval()
    layers, calls = layers_of(model, lambda: model(torch.randn(2, 3, 32, 32)))
    assert [tuple(layer.inputs.shape) for layer in layers] == [
        (2, 256, 8),
        (2, 64, 16),
        (2, 64, 16),
    ]
    assert [len(layer.calls) for layer in layers] == [1, 1, 1] == [1] * len(calls)


class Block(nn.Module):
    """Adds in place, as some models do."""

    def __init__(self, width=8, batch_first=True):
        super().__init__()
        self.attn, self.mlp = (
            nn.MultiheadAttention(width, 2, batch_first=batch_first),
            nn.Linear(width, width),
        )

    def forward(self, x):
        x += self.attn(x, x, x, need_weights=False)[0]
        return x + self.mlp(x)


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_model_of_any_kind(batch_first):
    """Streams are as they were when the block began and ended, first the batch, then the tokens."""
    model = nn.Sequential(*(Block(batch_first=batch_first) for _ in range(3))).eval()
    x = torch.randn(5, 7, 8)
    expected, y = [x], x if batch_first else x.transpose(0, 1)
    for block in model:
        y = block(y.clone())
        expected.append(y.clone() if batch_first else y.transpose(0, 1).clone())
    given = x if batch_first else x.transpose(0, 1)
    layers, calls = layers_of(model, lambda: model(given.clone()))
    assert (
        [layer.site for layer in layers]
        == [Site("self", i) for i in range(3)]
        == [call.site for call in calls]
    )
    for i, layer in enumerate(layers):
        torch.testing.assert_close(layer.inputs, expected[i])
        torch.testing.assert_close(layer.outputs, expected[i + 1])


@torch.no_grad()
def test_padding_of_torchs_own_encoder():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    )
    encoder.eval()
    x, real = torch.randn(3, 6, 8), torch.arange(6)[None] < torch.tensor([[6], [4], [2]])
    layers, _ = layers_of(encoder, lambda: encoder(x, src_key_padding_mask=~real))
    assert len(layers) == 2
    assert all(torch.equal(layer.valid, real) for layer in layers)
    assert torch.equal(layers[0].inputs, x)


@torch.no_grad()
def test_a_block_whose_attention_is_skipped_still_has_its_place():
    class Skipping(Block):
        def forward(self, x):
            return x + self.mlp(x) if self.skip else super().forward(x)

    model = nn.Sequential(*(Skipping() for _ in range(3))).eval()
    for block in model:
        block.skip = False
    x = torch.randn(2, 5, 8)
    with capture(model) as calls:
        model(x.clone())
    model[1].skip = True
    with capture_layers(model, attention_names(calls)) as layers:
        model(x.clone())
        model(x.clone())
    assert [(layer.site.layer, len(layer.calls)) for layer in layers] == [
        (0, 1),
        (1, 0),
        (2, 1),
    ] * 2


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@torch.no_grad()
def test_nothing_stays_behind_after_an_error():
    model, given = build("bert"), inputs("bert")
    with capture(model) as calls:
        before = model(**given)[0]
    names = attention_names(calls)

    def fail(layer):
        if layer.site.layer == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), capture_layers(model, names, fail):
        model(**given)
    assert hooks_of(model) == 0
    assert model.config._attn_implementation == "eager"
    assert torch.allclose(model(**given)[0], before, atol=1e-5)


@torch.no_grad()
def test_a_pass_that_failed_does_not_spoil_the_next():
    model, given = build("bert"), inputs("bert")
    with capture(model) as calls:
        model(**given)
    broken = model.encoder.layer[1].output.register_forward_pre_hook(lambda *_: 1 / 0)
    with capture_layers(model, attention_names(calls)) as layers:
        with pytest.raises(ZeroDivisionError):
            model(**given)
        broken.remove()
        model(**given)
    assert [layer.site.layer for layer in layers] == [0, 0, 1, 2]
    assert all(len(layer.calls) == 1 for layer in layers)


@torch.no_grad()
def test_attention_outside_any_block_is_refused():
    class Flat(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    model = Flat()
    with capture(model) as calls:
        model(torch.randn(1, 2, 4, 8))
    with (
        pytest.raises(EigenlensError, match="contain no number"),
        capture_layers(model, attention_names(calls)),
    ):
        pass
    assert hooks_of(model) == 0
