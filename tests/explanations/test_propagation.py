"""The rules of relevance, against plain loops over numpy from the model's own eager attention and
autograd.
"""

import dataclasses
import functools
import wave
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

from captures.families import CAUSAL, FAMILIES, build, inputs
from eigenlens import EigenlensError, load
from eigenlens.captures.precision import in_double, stays_double
from eigenlens.data.encode import encode
from eigenlens.explanations import METHODS, attribute, deletion_curves, observe, target_of
from eigenlens.explanations.propagation import (
    cross_update,
    mean_positive,
    normalised,
    propagate,
    relevance,
    relevance_by_stream,
)
from eigenlens.explanations.steps import Step, steps_of
from eigenlens.explanations.target import Target
from eigenlens.lab import TrainingSettings, Transformer, train
from eigenlens.lab.tasks import IGNORED, TaskBatch
from eigenlens.lab.toys import Toy
from explanations import by_loop
from explanations.test_observed import asked, toward
from tiny import of_catalogue, small_bert

catalogue = functools.cache(of_catalogue)  # loaded once for all tests here

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


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two pictures and a sound, made up."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)).save(
            folder / f"{name}.png"
        )
    with wave.open(str(folder / "tone.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes((8000 * np.sin(np.arange(16000) * 0.17)).astype("<i2").tobytes())
    return folder


CASES = {
    "minilm": ("The cat sat on the mat.", {"against": "A kitten rests on a rug."}),
    "smollm2": ("The capital of France is", {"target": " Paris"}),
    "stories15m": ("Once upon a time", {}),
    "dinov2-small": ("one.png", {"against": "two.png"}),
    "flan-t5-small": ("translate English to German: The house is wonderful.", {}),
    "distilbert-gec": ("Their is a car.", {}),
    "whisper-tiny-en": ("tone.wav", {}),
}


FEWER = {  # 257 and 1,500 tokens take a while by the others
    "dinov2-small": ["relevance", "attention", "rollout", "TensorLens toward the target"],
    "whisper-tiny-en": ["relevance", "gradient × input"],
}


@pytest.mark.parametrize("name", CASES)
def test_every_model_of_the_catalogue(name, files):
    model = catalogue(name)
    given, settings = CASES[name]
    in_folder = lambda text: str(files / text) if (files / text).is_file() else text  # noqa: E731
    batch = encode(model, in_folder(given))
    target = target_of(model, batch, **{key: in_folder(value) for key, value in settings.items()})
    methods = FEWER.get(name, list(METHODS))
    found = attribute(model, batch, target, methods)
    assert not found.notes and list(found) == methods
    tokens = {"dinov2-small": 257, "whisper-tiny-en": 1500}.get(name) or batch["input_ids"].shape[1]
    assert all(
        scores.shape == (1, tokens) and bool(torch.isfinite(scores).all())
        for scores in found.values()
    )
    assert bool((found["relevance"] >= 0).all()) and float(found["relevance"].sum()) > 0
    own = relevance_by_stream(found.observed)
    assert len(own) == (2 if name in {"flan-t5-small", "whisper-tiny-en"} else 1)


@pytest.mark.parametrize("kind", ["encoder", "module"])
def test_one_token(kind):
    if kind == "encoder":
        model, batch = load(small_bert()), {"input_ids": torch.tensor([[7]])}
    else:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = load(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval())
        batch = {"x": torch.randn(1, 1, 8)}
    found = attribute(model, batch, target_of(model, batch, target="output"))
    assert all(
        scores.shape == (1, 1) and bool(torch.isfinite(scores).all()) for scores in found.values()
    )
    assert len(found) == (10 if kind == "encoder" else 7) and len(found.notes) == (kind == "module")


class Planted(Toy):
    """Noise with one token that decides the class, which is asked for at the first token, the same
    in every input.
    """

    vocabulary, classes, length = 21, 4, 13

    def __init__(self, number=1200, held=200):
        tokens, self.labels = torch.randint(4, 20, (number, 13)), torch.randint(4, (number,))
        self.places = torch.randint(1, 13, (number,))
        tokens[torch.arange(number), self.places] = self.labels
        tokens[:, 0] = 20
        asked = torch.full((number, 13), IGNORED)
        asked[:, 0] = self.labels
        super().__init__(
            TaskBatch(tokens[:-held], asked[:-held]), TaskBatch(tokens[-held:], asked[-held:])
        )
        self.labels, self.places = self.labels[-held:], self.places[-held:]


def planted(norm):
    """A trained model, the batch, the target, and where the planted tokens are."""
    torch.manual_seed(0)
    task = Planted()
    model = Transformer(task.config(layers=1, width=32, heads=4, norm=norm))
    train(model, task, TrainingSettings(150, batch=64, rate=3e-3, measure=150))
    with torch.no_grad():
        assert (
            float((model.eval()(task.test.inputs)[:, 0].argmax(-1) == task.labels).float().mean())
            > 0.98
        )
    loaded, batch = load(model), {"inputs": task.test.inputs}
    return loaded, batch, target_of(loaded, batch, target=(0, None)), task.places


def found_first(scores, places):
    """How often the highest score is the planted token's, the token that is read left out."""
    return float((scores[:, 1:].argmax(1) + 1 == places).float().mean())


def test_a_planted_token_is_found():
    """The token that decides ranks first, and taking tokens away in its order tells relevance from
    chance.
    """
    model, batch, target, places = planted(norm=False)
    found = attribute(model, batch, target, ["relevance", "random"])
    assert (
        found_first(found["relevance"], places) >= 0.95
        and found_first(relevance(found.observed), places) >= 0.95
    )
    areas = {
        (d.method, d.order): float(d.auc.mean())
        for d in deletion_curves(model, batch, target, found)
    }
    for chance in (areas["random", "positive"], areas["random", "negative"]):
        assert areas["relevance", "positive"] < chance < areas["relevance", "negative"]


def test_a_planted_token_behind_a_norm_is_found_by_the_operator_alone():
    """A norm takes away the gradient along the stream, and the planted token is most of the stream:
    relevance misses it.
    """
    model, batch, target, places = planted(norm=True)
    found = attribute(model, batch, target, ["relevance", "TensorLens In+Out", "random"])
    assert found_first(found["random"], places) < found_first(found["relevance"], places) < 0.95
    assert found_first(found["TensorLens In+Out"], places) >= 0.95
