"""The numbers of an explanation against the model run by hand."""

import math
import re

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import (
    DistilBertConfig,
    DistilBertForTokenClassification,
)

import eigenlens as el
from eigenlens import EigenlensError
from eigenlens.explanations.methods import METHODS
from explanations.make_explanation.text import TEXT


def embedded(model, ids):
    """The mean of the last hidden states, by the model itself."""
    with torch.no_grad():
        return model.module(input_ids=torch.tensor([ids])).last_hidden_state.mean(1)


def test_the_score_is_the_cosine_of_two_embeddings(mini, found):
    ids, other = (mini.tokenizer(text)["input_ids"] for text in (TEXT, "Paris"))
    assert found.score == pytest.approx(
        float(cosine_similarity(embedded(mini, ids), embedded(mini, other))), abs=1e-5
    )
    assert found.tokens == [mini.tokenizer.decode([i]) for i in ids]
    assert found.special == [i in (101, 102) for i in ids]
    assert found.methods == list(METHODS)
    assert all(len(scores) == len(ids) for scores in found.scores.values())
    assert found.facts.model.fingerprint == mini.facts.fingerprint


def test_tokens_are_really_taken_away(mini, found):
    """Every point of a curve is the model on the ids that are left, in an order made here."""
    ids, other = (
        mini.tokenizer(TEXT)["input_ids"],
        embedded(mini, mini.tokenizer("Paris")["input_ids"]),
    )
    inner = range(1, len(ids) - 1)
    for name in ("relevance", "TensorLens In+Out"):
        for order in ("positive", "negative"):
            [curve] = [c for c in found.deletion if (c["method"], c["order"]) == (name, order)]
            ranked = sorted(inner, key=lambda i: found.scores[name][i], reverse=order == "positive")
            for fraction, score in zip(curve["fractions"], curve["scores"]):
                gone = set(ranked[: round(fraction * len(ranked))])
                left = [token for i, token in enumerate(ids) if i not in gone]
                assert score == pytest.approx(
                    float(cosine_similarity(embedded(mini, left), other)), abs=1e-5
                )
            assert curve["auc"] == pytest.approx(np.trapezoid(curve["scores"], curve["fractions"]))
    areas = {row["method"]: row for row in found.areas()}
    assert list(areas) == found.methods
    assert areas["relevance"]["positive"] < areas["random"]["positive"]


def test_several_texts_give_the_same_as_each_alone(mini, found):
    short = "A cat."
    both = el.explain(mini, [TEXT, short], against=["Paris", "An animal"])
    assert isinstance(both, tuple)
    alone = el.explain(mini, short, against="An animal")
    for one, other in zip(both, (found, alone)):
        assert one.tokens == other.tokens
        assert one.stored["target"] == other.stored["target"]
        for name in found.methods:
            if name not in {"random", "TensorLens norm"}:  # which draw random numbers
                largest = max(map(abs, other.scores[name]))
                np.testing.assert_allclose(
                    one.scores[name], other.scores[name], rtol=0, atol=1e-4 * largest
                )
    assert both[1].score == pytest.approx(alone.score, abs=1e-5)


def test_of_a_language_model_the_next_token(llama):
    """Its score is the log-probability at the last token, which is never taken away."""
    found = el.explain(llama, "the house of the")
    ids = torch.tensor([llama.tokenizer("the house of the")["input_ids"]])
    with torch.no_grad():
        p = llama.module(input_ids=ids).logits[0, -1].log_softmax(-1)
    assert found.score == pytest.approx(float(p.max()), abs=1e-4)
    assert llama.tokenizer.decode([int(p.argmax())]) in found.stored["target"]["label"]
    assert found.read_at == len(found.tokens) - 1
    chosen = el.explain(
        llama, "the house of the", target="dog", deletion=False, methods=["attention"]
    )
    dog = llama.tokenizer("dog", add_special_tokens=False)["input_ids"][0]
    assert chosen.score == pytest.approx(float(p[dog]), abs=1e-4)
    assert chosen.methods == ["attention"] and chosen.deletion == [] and chosen.areas() == []


def test_a_classifier_by_name_and_by_number(classifier, tokenizer):
    by_name = el.explain(classifier, "a fine film", target="good", tokenizer=tokenizer)
    by_number = el.explain(classifier, "a fine film", target=1, tokenizer=tokenizer)
    with torch.no_grad():
        logits = classifier(**tokenizer("a fine film", return_tensors="pt")).logits[0]
    # log-odds of one of two
    assert by_name.score == pytest.approx(float(logits[1] - logits[0]), abs=1e-5)
    assert by_name.score == by_number.score and "good" in by_name.name


def test_a_label_of_one_token_is_read_there(tokenizer):
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=30_522, dim=16, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=32
    )
    module = DistilBertForTokenClassification(config).eval()
    found = el.explain(module, "a fine film", target=(2, 1), tokenizer=tokenizer)
    assert found.read_at == 2 and found.fixed == [True, False, True, False, True]
    assert "where the target is read" in found.sentence


@pytest.mark.parametrize("name", ["minilm", "llama"])
def test_one_token_gives_numbers_throughout(mini, llama, name):
    found = (
        el.explain(mini, "cat", against="dog")
        if name == "minilm"
        else el.explain(llama.module, "cat", tokenizer=Bare(llama))
    )
    assert sum(not special for special in found.special) == 1
    numbers = [x for scores in found.scores.values() for x in scores]
    numbers += [x for curve in found.deletion for x in [*curve["scores"], curve["auc"]]] + [
        found.score
    ]
    assert all(map(math.isfinite, numbers))
    if found.read_at == 0:  # it is the token at which the target is read
        assert found.free == [] and found.deletion == [] and found.areas() == []
        assert found.sentence.endswith(". No token can be taken away.")
    else:
        assert found.free == [1] and "Only 'cat' can be taken away" in found.sentence
    assert "nan" not in found.sentence + found._repr_html_().lower().replace("nano", "")


class Bare:
    """A tokenizer that puts nothing around a text."""

    def __init__(self, model):
        self._inner = model.tokenizer

    def __call__(self, text, **options):
        return self._inner(text, **{**options, "add_special_tokens": False})

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __len__(self):
        return len(self._inner)


def test_a_module_in_training_mode_is_in_it_again(classifier, tokenizer):
    few = {"methods": ["attention"], "deletion": False, "tokenizer": tokenizer}
    want = el.explain(classifier, "a fine film", **few).scores
    classifier.train()
    classifier.classifier.eval()
    try:
        assert el.explain(classifier, "a fine film", **few).scores == want  # without dropout
        assert (
            classifier.training and classifier.bert.training and not classifier.classifier.training
        )
        with pytest.raises(EigenlensError):
            el.explain(classifier, "a fine film", target="best", **few)
        assert classifier.bert.training
    finally:
        classifier.eval()


def test_where_a_model_cannot_run_on_fewer_tokens_the_methods_are_kept(
    classifier, tokenizer, monkeypatch
):
    def fails(_module, _args, given):
        if given["input_ids"].shape[1] != 5:
            raise RuntimeError("sizes must match\nand more")

    hook = classifier.register_forward_pre_hook(fails, with_kwargs=True)
    try:
        found = el.explain(
            classifier, "a fine film", tokenizer=tokenizer, methods=["attention", "random"]
        )
    finally:
        hook.remove()
    assert found.methods == ["attention", "random"] and found.deletion == []
    assert re.fullmatch(
        r"deletion curves were left out: .* cannot run on an input with . tokens left \(sizes must match\)",
        found.notes[-1],
    )
