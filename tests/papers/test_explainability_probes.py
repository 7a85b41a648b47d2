"""Labelled reviews and pictures, the probes that read them, and tokens really taken away."""

import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from eigenlens.data.datasets import images, reviews
from eigenlens.errors import EigenlensError
from eigenlens.models.load import load
from eigenlens.papers.explainability import deletion
from eigenlens.papers.explainability.checks import one_layer
from eigenlens.papers.explainability.labelled import (
    SENTIMENT,
    labelled_pictures,
    labelled_reviews,
)
from eigenlens.papers.explainability.probe import (
    Probe,
    probe_logits,
    probe_of,
    regression,
)
from eigenlens.papers.inputs import CLOTHING
from tiny import of_catalogue


@pytest.fixture(scope="module")
def reviewed():
    """A probe of minilm learned from a few reviews, and those asked about."""
    base = load("minilm")
    learn, asked = labelled_reviews(base, 60, 6)
    return probe_of(base, learn, SENTIMENT, "mean"), learn, asked


@pytest.fixture(scope="module")
def pictured():
    base = of_catalogue("dinov2-small")
    try:
        learn, asked = labelled_pictures(base, 20, 2)
    except EigenlensError as error:
        pytest.skip(str(error))
    return probe_of(base, learn, CLOTHING, "first"), learn, asked


def test_reviews_have_the_label_that_people_gave_them(reviewed):
    model, learn, asked = reviewed
    scores = {}
    for review in reviews():
        scores.setdefault(review.text, []).append(review.score)
    for part in (learn, asked):
        for text, label in zip(part.texts, part.labels.tolist()):
            assert any(abs(score) >= 1 and (score > 0) == label for score in scores[text])
        assert int(part.labels.sum()) == len(part) // 2
    assert not set(learn.texts) & set(asked.texts)
    lengths = asked.batch["attention_mask"].sum(1)
    assert int(lengths.min()) >= 12 and int(lengths.max()) <= 64
    frame = [
        i
        for i, text in enumerate(model.tokenizer.convert_ids_to_tokens(asked.batch["input_ids"][0]))
        if text[0] == "["
    ]
    assert asked.keep[0].nonzero()[:, 0].tolist() == frame


def test_parts_of_reviews_lose_only_padding(reviewed):
    _, learn, _ = reviewed
    rows = 0
    for part in learn.parts(7):
        T = part.batch["input_ids"].shape[1]
        assert T == int(part.batch["attention_mask"].sum(1).max()) == part.keep.shape[1]
        torch.testing.assert_close(
            part.batch["input_ids"], learn.batch["input_ids"][rows : rows + len(part), :T]
        )
        rows += len(part)
    assert rows == len(learn)


@pytest.mark.download
def test_too_many_reviews_are_refused():
    with pytest.raises(EigenlensError, match="not 10 and 9000"):
        labelled_reviews(load("minilm"), 10, 9000, least=60)


def test_pictures_are_those_of_the_data_set(pictured):
    model, learn, asked = pictured
    found = list(images("fashion-mnist"))
    mean, spread = model.processor.image_mean, model.processor.image_std
    for part, first, last in ((learn, 0, 60_000), (asked, 60_000, 70_000)):
        assert part.batch["pixel_values"].shape == (len(part), 3, 98, 98)
        chosen = np.random.default_rng(0)
        places = chosen.permutation(60_000)[: len(learn)]
        if first:
            places = first + chosen.permutation(10_000)[: len(asked)]
        assert [found[i][1] for i in places] == part.labels.tolist() and all(
            first <= i < last for i in places
        )
        grey = part.batch["pixel_values"][:, 0] * spread[0] + mean[0]
        # a patch is 4 × 4 pixels of the data set
        small = torch.nn.functional.avg_pool2d(grey[:, None], 14)[:, 0] * 255
        for picture, place in zip(small, places):
            blocks = found[place][0].reshape(7, 4, 7, 4).mean((1, 3))
            assert np.corrcoef(picture.numpy().ravel(), blocks.ravel())[0, 1] > 0.98
    assert asked.keep[:, 0].all() and not asked.keep[:, 1:].any() and asked.keep.shape == (2, 50)


def test_the_regression_is_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 6, generator=generator) * torch.tensor([1.0, 5, 0.1, 2, 1, 3]) + 4
    labels = (x[:, 0] + x[:, 3] + torch.randn(120, generator=generator) > 8).long() + (
        x[:, 1] > 8
    ).long()
    strength = 0.05
    W, b = regression(x, labels, 3, strength)
    scaled = ((x - x.mean(0)) / x.std(0, correction=0)).numpy().astype(float)
    theirs = LogisticRegression(C=1 / (strength * 120), max_iter=10_000, tol=1e-12).fit(
        scaled, labels.numpy()
    )
    ours = (x.double() @ W + b).softmax(1).numpy()
    np.testing.assert_allclose(ours, theirs.predict_proba(scaled), atol=1e-5)


def test_a_probe_reads_the_mean_of_real_tokens(reviewed):
    model, _, asked = reviewed
    probe = model.module
    found = probe_logits(model, asked, 4)
    for i, text in enumerate(asked.texts):
        alone = model.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = probe.backbone(input_ids=alone["input_ids"]).last_hidden_state
        expected = states.mean(1) @ probe.readout.weight.T + probe.readout.bias
        torch.testing.assert_close(found[i], expected[0], atol=1e-4, rtol=1e-4)
    assert model.kind == "encoder" and model.config.id2label == {0: "negative", 1: "positive"}
    assert getattr(probe.backbone.config, "id2label", {}).get(0) != "negative"


def test_a_probe_has_learned_its_texts(reviewed):
    model, learn, _ = reviewed
    assert float((probe_logits(model, learn).argmax(1) == learn.labels).double().mean()) > 0.8


def by_hand(model, ids):
    with torch.no_grad():
        return model.module(input_ids=ids[None]).logits[0].double().softmax(0)


def test_tokens_of_a_text_are_really_gone(reviewed):
    model, _, asked = reviewed
    torch.manual_seed(1)
    scores = torch.rand(asked.keep.shape)
    positive, negative = deletion.deletions_of(model, asked, {"some": scores})
    for row in (0, 3):
        length = int(asked.batch["attention_mask"][row].sum())
        ids = asked.batch["input_ids"][row, :length]
        chosen = int(by_hand(model, ids).argmax())
        free = [i for i in range(length) if not asked.keep[row, i]]
        for found, sign in ((positive, -1), (negative, 1)):
            ranked = sorted(free, key=lambda i: sign * float(scores[row, i]))
            for place, fraction in enumerate(found.fractions):
                gone = set(ranked[: round(fraction * len(free))])
                p = by_hand(model, ids[[i for i in range(length) if i not in gone]])
                expected = float(p[chosen]) + 2 * int(int(p.argmax()) == int(asked.labels[row]))
                assert float(found.scores[row, place]) == pytest.approx(expected, abs=2e-5)


def test_patches_of_a_picture_are_really_gone(pictured):
    model, _, asked = pictured
    torch.manual_seed(1)
    scores = torch.rand(asked.keep.shape)
    positive, _ = deletion.deletions_of(model, asked, {"some": scores})
    probe, backbone = model.module, model.module.backbone
    with torch.no_grad():
        stream = backbone.embeddings(asked.batch["pixel_values"])[1:]  # (1, 50, C)
        chosen = int(probe_logits(model, asked)[1].argmax())
        falling = [0, *(1 + scores[1, 1:].argsort(descending=True)).tolist()]
        for place, fraction in enumerate(positive.fractions):
            left = sorted([0, *falling[1 + round(fraction * 49) :]])
            x = stream[:, left]
            for layer in backbone.encoder.layer:
                x = layer(x)
                x = x[0] if isinstance(x, tuple) else x
            p = probe.readout(backbone.layernorm(x)[:, 0])[0].double().softmax(0)
            expected = float(p[chosen]) + 2 * int(int(p.argmax()) == int(asked.labels[1]))
            assert float(positive.scores[1, place]) == pytest.approx(expected, abs=2e-5)


def test_one_layer_under_a_probe_has_relevance_i_plus_a(reviewed):
    model, _, asked = reviewed
    before = copy.deepcopy(model.module.state_dict())
    assert one_layer(model, next(asked.parts(3))) < 1e-10
    assert all(torch.equal(before[key], value) for key, value in model.module.state_dict().items())


def test_a_probe_of_the_first_token_reads_no_other():
    base = load("minilm")
    probe = Probe(base.backbone, ("a", "b"), "first").eval()
    ids = torch.randint(1000, 2000, (2, 7))
    with torch.no_grad():
        expected = probe.readout(base.backbone(input_ids=ids).last_hidden_state[:, 0])
        torch.testing.assert_close(probe(input_ids=ids).logits, expected)
