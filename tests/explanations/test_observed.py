"""One pass sees the patterns, the streams and their gradients as the model's own eager attention
and autograd give them.
"""

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

from captures.families import CAUSAL, FAMILIES, build, inputs
from eigenlens import EigenlensError, load
from eigenlens.anatomy import freeze
from eigenlens.data.encode import encode
from eigenlens.explanations import observe, target_of
from eigenlens.explanations.target import Target
from explanations.by_loop import eager
from explanations.directions import asked, toward
from explanations.loaded import catalogue
from tiny import small_bert, small_llama

PADDED = [(name, side) for name in FAMILIES if name != "clip" for side in ("none", "right")] + [
    (n, "left") for n in sorted(CAUSAL)
]


@pytest.mark.parametrize(("name", "padding"), PADDED)
def test_patterns_and_gradients_of_every_family(name, padding):
    model, given = build(name), inputs(name, padding)
    direction = asked(name, given, model)
    want, score = eager(model, given, lambda out: (out.last_hidden_state * direction).sum((1, 2)))
    seen = observe(load(model), given, toward(direction))
    torch.testing.assert_close(seen.score, score, rtol=1e-4, atol=1e-4)
    expected = [
        pair for kind in ("self", "encoder", "decoder", "cross") for pair in want.get(kind, ())
    ]
    rank = {"encoder": 1, "decoder": 2}
    ours = sorted(
        seen.patterns,
        key=lambda p: (
            p.kind == "cross",
            rank.get(p.site.stack.rpartition(".")[2], 0),
            p.site.layer,
        ),
    )
    assert len(ours) == len(expected)
    for pattern, (A, gradient) in zip(ours, expected):
        own = (A * gradient).clip(0)
        np.testing.assert_allclose(
            (pattern.weights * pattern.gradient).clamp_min(0), own, atol=2e-6 * max(own.max(), 1)
        )


def test_streams_begin_and_end_where_the_blocks_do():
    model = small_llama()
    given = {"input_ids": torch.randint(0, 50, (2, 7))}
    target = target_of(load(model), given, target=5)
    seen = observe(load(model), given, target)
    (stream,) = seen.streams
    kept = {}
    hooks = [
        model.model.layers[0].register_forward_pre_hook(lambda _, a: kept.update(first=a[0])),
        model.model.layers[-1].register_forward_hook(lambda _m, _a, out: kept.update(last=out)),
        model.model.norm.register_forward_hook(lambda _m, _a, out: kept.update(ended=out)),
    ]
    log_p = model(**given).logits[:, -1].log_softmax(-1)[:, 5]
    for hook in hooks:
        hook.remove()
    gradients = torch.autograd.grad(log_p.sum(), [kept["first"], kept["last"], kept["ended"]])
    torch.testing.assert_close(seen.score, log_p.detach())
    pairs = zip(
        ("inputs", "outputs", "ended"),
        ("gradient", "output_gradient", "ended_gradient"),
        kept.values(),
        gradients,
    )
    for place, slope, x, gradient in pairs:
        torch.testing.assert_close(getattr(stream, place), x.detach())
        torch.testing.assert_close(getattr(stream, slope), gradient, rtol=1e-4, atol=1e-6)
    reads = seen.reads()
    # the next token is read at the last token alone
    torch.testing.assert_close(reads, torch.eye(7)[-1].expand(2, 7))


def test_a_mean_reads_all_tokens_and_no_padding():
    model = catalogue("minilm")
    batch = encode(
        model, ["A short text.", "Another text, which is a good deal longer than the first."]
    )
    seen = observe(model, batch, target_of(model, batch, against="Some text."))
    reads, mask = seen.reads(), batch["attention_mask"].bool()
    torch.testing.assert_close(reads.sum(1), torch.ones(2))
    assert bool((reads[mask] > 0).all()) and bool((reads[~mask] == 0).all())
    assert torch.equal(seen.streams[0].valid, mask)
    with pytest.raises(EigenlensError, match="no stream 'decoder'; there are encoder"):
        seen.reads("decoder")


def test_batches_and_padding_change_nothing():
    model = catalogue("minilm")
    texts = ["A short text.", "Another text, which is a good deal longer than the first.", "Short"]
    batch = encode(model, texts)
    together = observe(model, batch, target_of(model, batch, against="Some text."))
    for row, text in enumerate(texts):
        single = encode(model, text)
        alone = observe(model, single, target_of(model, single, against="Some text."))
        n = single["input_ids"].shape[1]
        torch.testing.assert_close(together.score[row : row + 1], alone.score, rtol=0, atol=1e-6)
        for both, one in zip(together.patterns, alone.patterns):
            torch.testing.assert_close(
                both.weights[row, :, :n, :n], one.weights[0], rtol=0, atol=1e-5
            )
            torch.testing.assert_close(
                both.gradient[row, :, :n, :n], one.gradient[0], rtol=0, atol=1e-5
            )
            assert (
                float(
                    both.weights[row, :, n:].abs().sum() + both.weights[row, :, :, n:].abs().sum()
                )
                == 0
            )


class Block(nn.Module):
    """Adds in place, as some models do."""

    def __init__(self, batch_first):
        super().__init__()
        self.attn, self.mlp = nn.MultiheadAttention(8, 2, batch_first=batch_first), nn.Linear(8, 8)

    def forward(self, x):
        x += self.attn(x, x, x, need_weights=False)[0]
        return x + self.mlp(x)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("trainable", [True, False])
def test_a_model_of_any_kind(batch_first, trainable):
    """Also where nothing needs a gradient, where tokens come first, and where gradients are off
    around it.
    """
    model = nn.Sequential(*(Block(batch_first) for _ in range(2))).eval().requires_grad_(trainable)
    x = torch.randn(5, 7, 8)
    given = x if batch_first else x.transpose(0, 1).contiguous()
    target = Target(
        "output", "sum", lambda out, _: out.square().sum((1, 2) if batch_first else (0, 2))
    )
    with torch.no_grad():
        seen = observe(load(model), {"x": given.clone()}, target)
    leaf = given.clone().requires_grad_()
    y = leaf
    for block in model:  # the same, but not in place: autograd itself refuses that
        y = y + block.attn(y, y, y, need_weights=False)[0]
        y = y + block.mlp(y)
    (gradient,) = torch.autograd.grad(y.square().sum(), leaf)
    gradient, y = (t if batch_first else t.transpose(0, 1) for t in (gradient, y.detach()))
    (stream,) = seen.streams
    torch.testing.assert_close(stream.inputs, x)
    torch.testing.assert_close(stream.gradient, gradient)
    torch.testing.assert_close(stream.outputs, y)
    torch.testing.assert_close(stream.output_gradient, 2 * y)
    assert [tuple(p.weights.shape) for p in seen.patterns] == [(5, 2, 7, 7)] * 2
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("layers", [1, 2])
def test_torchs_own_encoder(layers):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = (
        layer if layers == 1 else nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    ).eval()
    x = torch.randn(3, 6, 8)
    seen = observe(load(model), {"x": x}, target_of(load(model), {"x": x}, target="output"))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).mean(1).square().sum(), leaf)
    torch.testing.assert_close(seen.streams[0].gradient, gradient)
    assert len(seen.patterns) == layers


def test_one_token_and_a_target_that_reads_nothing():
    model, given = load(small_bert()), {"input_ids": torch.tensor([[7]])}
    seen = observe(model, given, target_of(model, given, target="output"))
    assert float(seen.reads()) == 1.0 and bool(torch.isfinite(seen.patterns[0].gradient).all())
    given = {"input_ids": torch.tensor([[7, 8]])}
    seen = observe(
        model,
        given,
        Target("output", "nothing", lambda out, _: 0 * out.last_hidden_state.sum((1, 2))),
    )
    torch.testing.assert_close(seen.reads(), torch.tensor([[0.5, 0.5]]))
    with pytest.raises(EigenlensError, match="does not depend on the model's tokens"):
        observe(model, given, Target("output", "a constant", lambda _out, _: torch.ones(1)))
    with pytest.raises(EigenlensError, match="one number per input is needed"):
        observe(model, given, Target("output", "all", lambda out, _: out.last_hidden_state))


def bart(dropout):
    sizes = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    }
    rates = {"dropout": dropout, "attention_dropout": 0.0, "activation_dropout": 0.0}
    return tf.BartModel(
        tf.BartConfig(vocab_size=50, d_model=32, max_position_embeddings=64, **rates, **sizes)
    ).train()


def test_a_model_that_drops_at_random_is_refused():
    """BART drops by a function and holds no module that does."""
    module, batch = bart(0.3), {"input_ids": torch.randint(3, 50, (1, 6))}
    assert not any(isinstance(part, nn.Dropout) for part in module.modules())
    model = load(module, device=None)
    target = target_of(model, batch, target="output")
    with pytest.raises(
        EigenlensError,
        match=r"in training mode drops activations at random .*so it cannot be explained; call model.eval",
    ):
        observe(model, batch, target)
    with pytest.raises(
        EigenlensError, match=r"drops activations at random .*so it cannot be frozen"
    ):
        freeze(module, batch)
    assert module.training
    without = load(bart(0.0), device=None)  # in training mode, too, but nothing is dropped
    first, again = (observe(without, batch, target).score for _ in range(2))
    assert torch.equal(first, again) and freeze(without.module, batch)


def test_inference_mode_around_it_changes_nothing():
    model, ids = load(small_llama()), torch.randint(0, 50, (1, 6))
    want = observe(model, {"input_ids": ids}, target_of(model, {"input_ids": ids}, target=7))
    with torch.inference_mode():
        batch = {"input_ids": ids.clone()}
        found = observe(model, batch, target_of(model, batch, target=7))
        torch.testing.assert_close(found.streams[0].gradient, want.streams[0].gradient)
        torch.testing.assert_close(found.patterns[-1].gradient, want.patterns[-1].gradient)
        made = load(small_llama())
        with pytest.raises(
            EigenlensError, match=r"was loaded in torch.inference_mode\(\), so it has no gradients"
        ):
            observe(made, batch, target_of(made, batch, target=7))
