"""Relevance and the methods beside it, on labelled inputs: the data, the probe, tokens really taken
away, the verdicts.
"""

import copy
import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from eigenlens.data.datasets import images, reviews
from eigenlens.errors import EigenlensError
from eigenlens.lab import Transformer
from eigenlens.models.load import load
from eigenlens.papers import PAPERS, Reproduction, explainability
from eigenlens.papers.explainability import deletion, tasks
from eigenlens.papers.explainability.checks import one_layer
from eigenlens.papers.explainability.claims import claims_of
from eigenlens.papers.explainability.labelled import (
    SENTIMENT,
    Labelled,
    labelled_pictures,
    labelled_reviews,
)
from eigenlens.papers.explainability.planted import (
    AtClassToken,
    Planted,
    planted_run,
    rising_share,
    top_ranked,
)
from eigenlens.papers.explainability.probe import (
    Probe,
    probe_logits,
    probe_of,
    regression,
    share_right,
)
from eigenlens.papers.explainability.stories import SURE, own_stories
from eigenlens.papers.explainability.tables import area_rows, pair_rows
from eigenlens.papers.inputs import CLOTHING
from eigenlens.run.progress import silent
from eigenlens.stats.intervals import bootstrap_interval
from tiny import of_catalogue


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explainability") / "run"
    return PAPERS["explainability"](True, folder), folder


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


@pytest.mark.parametrize(("right", "number"), [(0, 9), (7, 10), (300, 300), (213, 400)])
def test_the_interval_of_a_share_is_wilsons(right, number):
    share, low, high = share_right(right, number)
    theirs = binomtest(right, number).proportion_ci(method="wilson")
    assert (share, low, high) == pytest.approx((right / number, theirs.low, theirs.high), abs=1e-6)


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


@pytest.mark.download
def test_stories_end_where_the_model_is_sure():
    model = of_catalogue("stories15m")
    found = own_stories(model, 3, 12, 0)
    assert (
        found.batch["input_ids"].shape == (3, 12)
        and (found.batch["input_ids"][:, 0] == model.tokenizer.bos_token_id).all()
    )
    with torch.no_grad():
        for ids, label in zip(found.batch["input_ids"], found.labels):
            p = model.module(input_ids=ids[None]).logits[0, -1].softmax(0)
            assert int(p.argmax()) == int(label) and float(p.max()) >= SURE - 1e-4
    assert found.keep[:, [0, -1]].all() and int(found.keep.sum()) == 6
    assert torch.equal(own_stories(model, 3, 12, 0).batch["input_ids"], found.batch["input_ids"])


def test_the_interval_of_a_mean_is_that_of_its_standard_error():
    x = np.random.default_rng(1).normal(3, 2, 200)
    mean, low, high = bootstrap_interval(x.tolist())
    error = x.std() / math.sqrt(len(x))
    assert mean == pytest.approx(x.mean())
    assert low == pytest.approx(mean - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.1 * error)


def test_gains_are_above_zero_where_the_method_is_better():
    good, bad = (
        {"positive": [0.1, 0.2], "negative": [0.9, 0.8]},
        {"positive": [0.5, 0.3], "negative": [0.6, 0.7]},
    )
    areas = {"relevance": good, "attention": bad}
    found = {"areas": areas, "right": areas}
    rows = {row["order"]: row for row in pair_rows("toy", found, "relevance")}
    assert rows["positive"]["gain"] == pytest.approx(0.25) and rows["negative"][
        "gain"
    ] == pytest.approx(0.2)
    assert all(row["gain"] < 0 for row in pair_rows("toy", found, "attention"))
    assert area_rows("toy", found)[1]["positive"] == pytest.approx(0.4)


@pytest.mark.parametrize("read", ["class token", "mean"])
def test_the_planted_token_is_the_class_and_the_only_one(read):
    task = Planted(read, seed=3)
    tokens, rows = task.test.inputs, torch.arange(len(task.test.inputs))
    assert torch.equal(tokens[rows, task.places], task.labels)
    assert ((tokens < task.classes).sum(1) == 1).all() and (
        tokens[:, 0] == task.vocabulary - 1
    ).all()


def test_a_tie_is_no_first_rank():
    scores, places = torch.tensor([[0.0, 2, 1], [3, 3, 1], [1, 0, 2]]), torch.tensor([1, 0, 2])
    assert top_ranked(scores, places) == pytest.approx(2 / 3)


def test_the_attention_that_relevance_counts_is_that_with_a_rising_score():
    task = Planted("class token", test=20, seed=0)
    model = Transformer(task.config(layers=1, width=16, heads=2)).eval()
    keep = torch.zeros_like(task.test.inputs, dtype=torch.bool)
    asked = Labelled({"inputs": task.test.inputs}, task.labels, keep)
    found = rising_share(load(AtClassToken(model)), asked, task.places, False)
    block, x = model.blocks[0], model.embed(task.test.inputs)
    attention, y = block.attention, block.norm_1(x)
    A = attention.pattern(y).detach().requires_grad_()
    x = x + attention.out((A @ attention.queries_keys_values(y)[2]).transpose(1, 2).flatten(2))
    x = x + block.narrow(block.act(block.wide(block.norm_2(x))))
    p = model.read(model.norm(x))[:, 0].softmax(1).amax(1)
    (slope,) = torch.autograd.grad((p / (1 - p)).log().sum(), A)
    rows = torch.arange(20)
    # (20, H)
    weights, rises = A.detach()[rows, :, 0, task.places], slope[rows, :, 0, task.places] > 0
    assert found == pytest.approx(float((weights * rises).sum() / weights.sum()), abs=1e-5)


@pytest.mark.slow
def test_a_model_that_has_learned_the_planted_token_shows_it_to_its_operator():
    run = planted_run(
        "pre-norm", "class token", layers=1, steps=200, inputs=40, draws=2, seed=0, progress=silent
    )
    assert run["accuracy"] > 0.95 and run["top"]["TensorLens In+Out"] >= 0.95
    mean = {
        name: {order: np.mean(x) for order, x in areas.items()}
        for name, areas in run["areas"].items()
    }
    lens, chance = mean["TensorLens In+Out"], mean["random"]
    assert lens["positive"] < chance["positive"] and chance["negative"] < lens["negative"]
    assert run["top"]["random"] < 0.4


def test_the_quick_run_gives_every_claim_and_the_facts_hold(done):
    run, _ = done
    names = [claim.claim for claim in run.claims]
    assert len(names) == len(set(names)) == 4 + 15 + 6 + 3
    verdicts = {claim.claim: claim.verdict for claim in run.claims}
    assert all(verdicts[name] == "reproduced" for name in names[:4])
    again = Reproduction.from_record(json.loads(json.dumps(run.record(), allow_nan=False)))
    assert again.record() == json.loads(json.dumps(run.record()))
    made = explainability.charts(run.tables)
    assert list(made) == ["deletion", "accuracy", "areas", "planted"] and all(
        chart.to_dict() for chart in made.values()
    )


def test_curves_begin_and_end_alike_for_all_methods(done):
    run, _ = done
    for task in ("reviews", "clothing", "stories"):
        for fraction in (0, 1):
            values = [
                row["probability"]
                for row in run.tables["curves"]
                if (row["task"], row["fraction"]) == (task, fraction)
            ]
            assert len(values) == 20 and max(values) - min(values) < 1e-9
    areas = {row["method"]: row for row in run.tables["areas"] if row["task"] == "reviews"}
    curve = [
        row
        for row in run.tables["curves"]
        if (row["task"], row["method"], row["order"]) == ("reviews", "rollout", "positive")
    ]
    area = np.trapezoid([row["probability"] for row in curve], [row["fraction"] for row in curve])
    assert areas["rollout"]["positive"] == pytest.approx(area)


def test_what_is_finished_is_not_done_again(done, monkeypatch):
    run, folder = done
    for name in ("reviews", "clothing", "stories", "planted_run"):
        monkeypatch.setattr(explainability, name, lambda *_, **__: pytest.fail("done again"))
    monkeypatch.setattr(tasks, "load", lambda *_: pytest.fail("loaded again"))
    assert PAPERS["explainability"](True, folder, resume=True).record() == run.record()


def test_verdicts_follow_from_the_numbers(done):
    run, _ = done
    tables = {name: [dict(row) for row in rows] for name, rows in run.tables.items()}
    for row in tables["pairs"]:
        row["low"] = 0.1 if row["against"] == "rollout" or row["order"] == "positive" else -0.1
    for row in tables["planted"]:
        row["top-ranked"] = 0.96 if row["method"] == "relevance" else 0.94
        row["positive"], row["random, positive"] = 0.6, 0.5
    verdicts = {claim.claim: claim.verdict for claim in claims_of(tables, False)}
    for task in ("reviews", "clothing", "stories"):
        for method in ("relevance", "TensorLens In+Out"):
            assert verdicts[f"{task}: {method} better than rollout"] == "reproduced"
            assert verdicts[f"{task}: {method} better than attention"] == "not reproduced"
    assert verdicts["planted token: relevance ranks it first"] == "reproduced"
    assert verdicts["planted token: TensorLens In+Out ranks it first"] == "not reproduced"
    assert verdicts["planted token: area positive < random < negative"] == "not reproduced"


def test_a_probe_of_the_first_token_reads_no_other():
    base = load("minilm")
    probe = Probe(base.backbone, ("a", "b"), "first").eval()
    ids = torch.randint(1000, 2000, (2, 7))
    with torch.no_grad():
        expected = probe.readout(base.backbone(input_ids=ids).last_hidden_state[:, 0])
        torch.testing.assert_close(probe(input_ids=ids).logits, expected)
