"""The simpler methods, each against its formula in numpy on made-up attentions and on real
weights.
"""

import numpy as np
import pytest
import torch

from eigenlens import EigenlensError, load
from eigenlens.captures import Site
from eigenlens.data.encode import encode
from eigenlens.explanations import METHODS, attribute, baselines, linearize, observe, target_of
from eigenlens.explanations.observed import Observed, Pattern, Stream
from tiny import of_catalogue, small_bert, small_llama

B, H, T, S, C = 2, 3, 4, 5, 6


def pattern(stack, layer, queries, keys, kind="self"):
    stream = stack.removesuffix(".cross")
    return Pattern(
        Site(stack, layer),
        kind,
        torch.rand(B, H, queries, keys).softmax(-1),
        torch.randn(B, H, queries, keys),
        stream,
    )


def stream(stack, tokens, valid=None):
    x = [torch.randn(B, tokens, C) for _ in range(4)]
    valid = torch.ones(B, tokens, dtype=torch.bool) if valid is None else valid
    return Stream(stack, *x, valid, x[2], x[3])


@pytest.fixture
def encoder():
    return Observed(
        torch.randn(B),
        tuple(pattern("encoder", i, T, T) for i in range(2)),
        (stream("encoder", T),),
    )


@pytest.fixture
def both():
    """Encoder of S tokens, decoder of T."""
    patterns = [pattern("encoder", i, S, S) for i in range(2)]
    for i in range(2):
        patterns += [pattern("decoder", i, T, T), pattern("decoder.cross", i, T, S, "cross")]
    return Observed(torch.randn(B), tuple(patterns), (stream("encoder", S), stream("decoder", T)))


def reads(observed, b):
    norms = np.linalg.norm(observed.streams[-1].output_gradient[b].numpy(), axis=1)
    return norms / norms.sum()


def last(observed, b):
    return observed.patterns[-1].weights[b].numpy(), observed.patterns[-1].gradient[b].numpy()


@pytest.mark.parametrize("which", ["encoder", "both"])
def test_methods_of_the_last_attention(which, request):
    seen = request.getfixturevalue(which)
    for b in range(B):
        w, (A, G) = reads(seen, b), last(seen, b)
        rows, slopes = np.einsum("i,hij->hj", w, A), np.einsum("i,hij->hj", w, G)
        np.testing.assert_allclose(baselines.attention(seen)[b], rows.mean(0), rtol=1e-5)
        np.testing.assert_allclose(
            baselines.attention_gradient(seen)[b], w @ np.clip(A * G, 0, None).mean(0), rtol=1e-5
        )
        cam = sum(slopes[h].mean() * rows[h] for h in range(H)) / H
        np.testing.assert_allclose(
            baselines.grad_cam(seen)[b], np.clip(cam, 0, None), rtol=1e-4, atol=1e-7
        )


def test_rollout_of_an_encoder(encoder):
    for b in range(B):
        product = np.eye(T)
        for p in encoder.patterns:
            product = (0.5 * p.weights[b].mean(0).numpy() + 0.5 * np.eye(T)) @ product
        found = baselines.rollout(encoder)[b]
        np.testing.assert_allclose(found, reads(encoder, b) @ product, rtol=1e-5)
        assert float(found.sum()) == pytest.approx(1, abs=1e-5)


def test_rollout_of_an_encoder_decoder(both):
    """As one encoder whose tokens are those of both sides, the pattern of a cross-attention in a
    corner of it.
    """
    for b in range(B):
        product = np.eye(S + T)
        for p in both.patterns:
            A = np.eye(S + T)  # who does not attend keeps what it has
            mean = p.weights[b].mean(0).numpy()
            if p.site.stack == "encoder":
                A[:S, :S] = mean
            elif p.kind == "self":
                A[S:, S:] = mean
            else:
                A[S:, :S], A[S:, S:] = mean, 0
            product = (A + np.eye(S + T)) / 2 @ product
        np.testing.assert_allclose(
            baselines.rollout(both)[b], reads(both, b) @ product[S:, :S], rtol=1e-5
        )


def test_gradient_times_input(encoder, both):
    for seen in (encoder, both):
        first = seen.streams[0]
        want = (first.inputs.numpy() * first.gradient.numpy()).sum(-1)
        np.testing.assert_allclose(baselines.gradient_input(seen), want, rtol=1e-5, atol=1e-6)


def test_chance_is_the_same_for_a_seed(encoder):
    one, again, other = (baselines.random_scores(encoder, seed) for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other) and one.shape == (B, T)


def test_padding_gets_nothing(encoder):
    valid = torch.tensor([[True] * T, [True, True, False, False]])
    seen = Observed(encoder.score, encoder.patterns, (stream("encoder", T, valid),))
    for name, method in METHODS.items():
        if not name.startswith("TensorLens"):
            assert bool((method(seen, None)[1, 2:] == 0).all()), name


def test_all_methods_together_one_by_one_and_padded():
    model = of_catalogue("minilm")
    texts = ["A short text.", "Another text, which is a good deal longer than the first."]
    batch = encode(model, texts)
    together = attribute(model, batch, target_of(model, batch, against="Some text."))
    assert list(together) == list(METHODS) and not together.notes
    for row, text in enumerate(texts):
        single = encode(model, text)
        alone = attribute(model, single, target_of(model, single, against="Some text."))
        n = single["input_ids"].shape[1]
        for name in METHODS:
            size = float(alone[name].abs().max())
            torch.testing.assert_close(
                together[name][row, :n], alone[name][0], rtol=0, atol=1e-4 * size
            )
            assert float(together[name][row, n:].abs().sum()) == 0


def test_padding_on_the_left_changes_no_method():
    torch.manual_seed(0)
    model, ids = load(small_llama().double()), torch.randint(1, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    together = attribute(model, batch, target_of(model, batch, target=7))
    for row, begin in ((0, 0), (1, 4)):
        single = {"input_ids": ids[row : row + 1, begin:]}
        alone = attribute(model, single, target_of(model, single, target=7))
        for name in METHODS:
            torch.testing.assert_close(
                together[name][row, begin:], alone[name][0], rtol=1e-6, atol=1e-9, msg=name
            )


@pytest.mark.parametrize("real", [pytest.param(True, marks=pytest.mark.download), False])
def test_toward_the_target_is_complete(real):
    """Σ_j ⟨(Tᵀu)_j, x_j⟩ = ⟨u, y − B⟩, with u the gradient behind the last norm, found here by
    autograd.
    """
    model = of_catalogue("stories15m") if real else load(small_llama().double())
    batch = (
        encode(model, "Once upon a time, there was a little")
        if real
        else {"input_ids": torch.randint(0, 50, (1, 7))}
    )
    found = attribute(model, batch, target_of(model, batch), ["TensorLens toward the target"])
    (op,) = linearize(model, batch)
    y = op.output.clone().requires_grad_()
    (u,) = torch.autograd.grad(model.module.lm_head(y)[:, -1].log_softmax(-1).max(), y)
    want = float((u * (op.output - op.bias)).sum())
    limit = 1e-3 if real else 1e-10
    assert float(found["TensorLens toward the target"].sum()) == pytest.approx(
        want, rel=limit, abs=limit
    )


def test_unknown_methods_and_unknown_models():
    model, batch = load(small_bert()), {"input_ids": torch.randint(0, 50, (1, 5))}
    target = target_of(model, batch, target="output")
    with pytest.raises(
        EigenlensError,
        match=(
            r"no method 'atention' \(did you mean attention\?\); there are relevance, attention ×"
            r" gradient"
        ),
    ):
        attribute(model, batch, target, ["atention"])
    with pytest.raises(EigenlensError, match="no method was named"):
        attribute(model, batch, target, [])
    assert list(attribute(model, batch, target, ["rollout"])) == ["rollout"]
    with pytest.raises(EigenlensError, match="could not be frozen"):
        METHODS["TensorLens In+Out"](observe(model, batch, target), None)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    plain = load(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval())
    x = {"x": torch.randn(2, 5, 8)}
    found = attribute(plain, x, target_of(plain, x, target="output"))
    assert (
        len(found) == 7
        and "TensorLens methods were left out: the blocks of TransformerEncoder are not known"
        in found.notes[0]
    )
