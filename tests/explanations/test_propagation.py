"""The rules of relevance, against plain loops over numpy from the model's own eager attention and
autograd.
"""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as tf

from captures.families import CAUSAL, FAMILIES, build, inputs
from eigenlens import load
from eigenlens.captures.precision import in_double, stays_double
from eigenlens.data.encode import encode
from eigenlens.explanations import observe, target_of
from eigenlens.explanations.propagation import (
    mean_positive,
    normalised,
    propagate,
    relevance,
)
from eigenlens.explanations.steps import Step, steps_of
from eigenlens.explanations.target import Target
from explanations import by_loop
from explanations.directions import asked, toward
from explanations.loaded import catalogue

ALONE = [name for name in FAMILIES if name not in {"t5", "bart", "marian", "whisper", "clip"}]
TWO_SIDED = ["t5", "bart", "marian", "whisper"]
TEXTS = ["A short text.", "Another text, which is a good deal longer than the first.", "Short"]


def random_step(queries, keys, T, S, B=2, H=3):
    return Step(queries, keys, torch.rand(B, H, T, S).softmax(-1), torch.randn(B, H, T, S))


def test_one_layer_is_the_identity_and_its_mean_positive_part():
    step = random_step("self", "self", 6, 6)
    R = propagate([step])["self", "self"]
    products = step.weights.double() * step.gradient.double()
    want = np.eye(6) + np.where(products.numpy() > 0, products.numpy(), 0).mean(1)
    np.testing.assert_allclose(R, want, rtol=0, atol=1e-7)
    assert torch.equal(R, torch.eye(6) + mean_positive(step.weights, step.gradient))


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("padding", ["none", "right"])
def test_self_attention_is_what_a_loop_gives(name, padding):
    model, given = build(name), inputs(name, padding)
    direction = asked(name, given, model)
    found, _ = by_loop.eager(
        model, given, lambda out: (out.last_hidden_state * direction).sum((1, 2))
    )
    steps = steps_of(observe(load(model), given, toward(direction)))
    (R,) = propagate(steps).values()
    assert bool((R >= 0).all())
    for b in range(len(R)):
        want = by_loop.encoder(found["self"], b)
        np.testing.assert_allclose(R[b], want, rtol=1e-6, atol=1e-6 * want.max())
        added = want - np.eye(len(want))
        np.testing.assert_allclose(
            R[b] - torch.eye(len(want)), added, rtol=0, atol=1e-4 * added.max()
        )
        if name in CAUSAL:
            assert bool((R[b].triu(1) == 0).all())


@pytest.mark.parametrize("name", TWO_SIDED)
def test_an_encoder_decoder_is_what_a_loop_gives(name):
    model, given = build(name), inputs(name, "none" if name == "whisper" else "right")
    direction = asked(name, given, model)
    found, _ = by_loop.eager(
        model, given, lambda out: (out.last_hidden_state * direction).sum((1, 2))
    )
    R = propagate(steps_of(observe(load(model), given, toward(direction))))
    assert set(R) == {("encoder", "encoder"), ("decoder", "decoder"), ("decoder", "encoder")}
    for b in range(3):
        ee, dd, de = by_loop.encoder_decoder(found, b)
        for pair, want in {
            ("encoder", "encoder"): ee,
            ("decoder", "decoder"): dd,
            ("decoder", "encoder"): de,
        }.items():
            np.testing.assert_allclose(R[pair][b], want, rtol=1e-5, atol=2e-6 * want.max())
            assert bool((R[pair] >= 0).all())


def test_real_weights_are_what_a_loop_gives():
    """minilm, with the tokens that the mean of its embedding reads, found by autograd on its own
    eager attention.
    """
    loaded = catalogue("minilm")
    own = tf.BertModel.from_pretrained(
        loaded.module.config._name_or_path, attn_implementation="eager"
    ).eval()
    batch = encode(loaded, TEXTS[:2])
    other = torch.randn(384)
    mask = batch["attention_mask"][..., None]

    def score_of(out):
        mean = (out.last_hidden_state * mask).sum(1) / mask.sum(1)
        return (mean / mean.norm(dim=1, keepdim=True)) @ (other / other.norm())

    found, score = by_loop.eager(own, batch, score_of)
    target = Target("similarity", "a direction", lambda out, _: score_of(out))
    seen = observe(loaded, batch, target)
    torch.testing.assert_close(seen.score, score, rtol=0, atol=1e-6)
    # behind the last block: a BERT has no norm of its own there
    states = own(**batch).last_hidden_state
    end = states.detach().requires_grad_()
    (slope,) = torch.autograd.grad(score_of(SimpleNamespace(last_hidden_state=end)).sum(), end)
    (R,) = propagate(steps_of(seen)).values()
    ours = relevance(seen)
    for b in range(2):
        want = by_loop.encoder(found["self"], b)
        np.testing.assert_allclose(R[b], want, rtol=0, atol=1e-6)
        added = want - np.eye(len(want))  # small beside the identity
        np.testing.assert_allclose(
            R[b] - torch.eye(len(want)), added, rtol=0, atol=1e-3 * added.max()
        )
        w = slope[b].norm(dim=1).double().numpy()
        np.testing.assert_allclose(
            ours[b], (w / w.sum()) @ want * batch["attention_mask"][b].numpy(), rtol=0, atol=1e-6
        )


def test_a_batch_is_its_inputs_one_by_one():
    """In float64, of what attention adds: beside the identity it is small, and would hide in its
    rounding.
    """
    model = dataclasses.replace(loaded := catalogue("minilm"), module=in_double(loaded.module))
    batch = encode(model, TEXTS)
    with stays_double():
        together = relevance(
            observe(model, batch, target_of(model, batch, against="Some text.")), start=False
        )
        assert bool((together[~batch["attention_mask"].bool()] == 0).all())
        for row, text in enumerate(TEXTS):
            single = encode(model, text)
            alone = relevance(
                observe(model, single, target_of(model, single, against="Some text.")), start=False
            )
            n, size = alone.shape[1], float(alone.max())
            assert size > 0
            torch.testing.assert_close(together[row, :n], alone[0], rtol=0, atol=1e-6 * size)
            assert float(together[row, n:].abs().sum()) == 0


def test_an_empty_row_keeps_the_identity():
    R = torch.eye(3) + torch.tensor([[0.0, 0, 0], [1, 3, 0], [0, 0, 0.5]])
    want = torch.tensor([[1.0, 0, 0], [0.25, 1.75, 0], [0, 0, 2]])
    torch.testing.assert_close(normalised(R[None]), want[None])
    step = random_step("decoder", "encoder", 4, 5)
    R = propagate([step])  # nothing has attended within the streams yet: all rows are empty
    torch.testing.assert_close(R["decoder", "encoder"], mean_positive(step.weights, step.gradient))
    assert all(bool(torch.isfinite(x).all()) for x in R.values())


def test_both_directions_of_a_co_attention_come_from_the_old_map():
    """Two streams that attend to each other, by hand for one input."""
    steps = [random_step("a", "a", 3, 3, 1), random_step("b", "b", 4, 4, 1)]
    steps += [
        random_step("a", "b", 3, 4, 1),
        random_step("b", "a", 4, 3, 1),
        random_step("a", "a", 3, 3, 1),
    ]
    R = {pair: x[0].numpy() for pair, x in propagate(steps).items()}
    mean = [by_loop.positive(step.weights[0].numpy(), step.gradient[0].numpy()) for step in steps]
    aa, bb = np.eye(3) + mean[0], np.eye(4) + mean[1]
    ab = by_loop.normalised(aa).T @ mean[2] @ by_loop.normalised(bb)
    ba = by_loop.normalised(bb).T @ mean[3] @ by_loop.normalised(aa)  # not from the new aa
    want = {
        ("a", "a"): aa + mean[4] @ aa,
        ("b", "b"): bb,
        ("a", "b"): ab + mean[4] @ ab,
        ("b", "a"): ba,
    }
    for pair, x in want.items():
        np.testing.assert_allclose(R[pair], x, rtol=1e-5)
    # A second layer: what a reads of itself through b, R^aa += A R^ba, and b likewise, both from
    # the old maps.
    steps += [random_step("a", "b", 3, 4, 1), random_step("b", "a", 4, 3, 1)]
    more = [
        by_loop.positive(step.weights[0].numpy(), step.gradient[0].numpy()) for step in steps[-2:]
    ]
    R = {pair: x[0].numpy() for pair, x in propagate(steps).items()}
    np.testing.assert_allclose(R["a", "a"], want["a", "a"] + more[0] @ want["b", "a"], rtol=1e-5)
    np.testing.assert_allclose(R["b", "b"], want["b", "b"] + more[1] @ want["a", "b"], rtol=1e-5)
