"""An explanation: its numbers against the model run by hand, its folder, what it says, and what it
refuses.
"""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForTokenClassification,
)

import eigenlens as el
from eigenlens import EigenlensError, Explanation
from eigenlens.cli.terminal import show
from eigenlens.explanations.methods import METHODS
from eigenlens.explanations.verdict import votes
from eigenlens.models import catalogue
from explanations.handmade import handmade
from tiny import of_catalogue

TEXT = "The capital of France is a large city on the river Seine."


def embedded(model, ids):
    """The mean of the last hidden states, by the model itself."""
    with torch.no_grad():
        return model.module(input_ids=torch.tensor([ids])).last_hidden_state.mean(1)


@pytest.fixture(scope="module")
def mini():
    return of_catalogue("minilm")


@pytest.fixture(scope="module")
def found(mini):
    return el.explain(mini, TEXT, against="Paris")


@pytest.fixture(scope="module")
def llama(llama):
    return el.load(llama)


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30_522,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        id2label={0: "bad", 1: "good"},
        label2id={"bad": 0, "good": 1},
        initializer_range=0.3,
    )
    return BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(catalogue.folder("minilm"))


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
    assert "at which it is read" in found.sentence


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
        assert found.sentence.endswith("; no token can be taken away.")
    else:
        assert found.free == [1] and "only 'cat' can be taken away" in found.sentence
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


def test_colours_are_shares_of_the_method_s_own_largest():
    found = handmade()  # scores 0 1 2 3 4, the first and the last special
    # from the least to the largest of the inner three
    assert found.levels("relevance") == [0, 0, 5, 10, 10]
    assert found.levels("gradient × input") == [0, 3, -7, 10, -10]  # 1/3, −2/3, 3/3
    assert found.levels("random") == [0] * 5  # all alike
    zero = replace(found, scores={"attention": [0.0] * 5})
    assert zero.levels("attention") == [0] * 5 and zero.strongest("attention") == []


def test_the_strongest_tokens_and_who_votes_for_them():
    found = handmade()
    assert found.strongest("relevance") == [3, 2, 1]
    assert found.strongest("gradient × input") == [3, 1]  # −2 speaks against
    assert votes(found, 1) == [(3, 2)]  # chance has no vote
    assert votes(found) == [(3, 2), (1, 2), (2, 1)]
    read = handmade(position=3)
    assert read.strongest("relevance") == [2, 1]


def test_the_sentence_names_target_tokens_and_the_best_order():
    said = handmade().sentence
    assert said.startswith(
        "Similarity to 'a dog': cosine 0.8; 2 of 2 methods put 'sat' among the three tokens"
    )
    assert "2 'the'" in said and "1 'cat'" in said
    assert "soonest in the order of relevance (area 0.325, 0.475 at random)." in said
    assert "at which it is read" in handmade(position=3).sentence
    alone = replace(handmade(), scores={"relevance": [0.0, 1.0, 2.0, 3.0, 4.0]}, deletion=[])
    assert (
        alone.sentence
        == "Similarity to 'a dog': cosine 0.8; by relevance it is 'sat', 'cat' and 'the' that"
        " matter most."
    )


def test_a_word_that_is_there_twice_is_told_with_its_place():
    assert "'the' (token 3)" in handmade(("[CLS]", "the", "cat", "the", "[SEP]")).sentence


def test_rows_have_every_token_by_every_method(found):
    rows = found.rows()
    assert [row["token"] for row in rows] == found.tokens
    assert [row["relevance"] for row in rows] == found.scores["relevance"]
    points = found.curves()
    assert len(points) == 2 * len(METHODS) * 9


def test_its_folder_gives_it_back(found, tmp_path):
    opened = Explanation.open(found.save(tmp_path / "e"))
    assert opened.record() == found.record()
    assert json.loads(json.dumps(found.record(), allow_nan=False)) == found.record()


def test_several_texts_each_have_a_folder(llama, tmp_path):
    made = el.explain(
        llama,
        ["one", "two words"],
        methods=["attention"],
        deletion=False,
        output_dir=tmp_path / "all",
    )
    assert [Explanation.open(tmp_path / "all" / str(i)).record() for i in (1, 2)] == [
        one.record() for one in made
    ]


def test_with_force_nothing_of_an_earlier_explanation_is_left(llama, tmp_path):
    def make(text, force=True):
        el.explain(
            llama,
            text,
            methods=["attention"],
            deletion=False,
            output_dir=tmp_path / "d",
            overwrite=force,
        )
        return {str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").rglob("*.*")}

    assert make(["one", "two", "three"], False) == {f"{i}/explanation.json" for i in (1, 2, 3)}
    (tmp_path / "d" / "2" / "mine.txt").write_text("mine")
    assert make("one") == {"explanation.json", "2/mine.txt"}  # what is no explanation stays
    assert make(["one"]) == {"1/explanation.json", "2/mine.txt"}


def test_one_text_for_all_or_one_for_each(mini):
    few = {"methods": ["attention"], "deletion": False}
    many = [f"{i} cats" for i in range(17)]  # more than one batch
    listed = el.explain(mini, many, against=["An animal"], **few)
    plain = el.explain(mini, many, against="An animal", **few)
    assert [one.score for one in listed] == [one.score for one in plain]
    assert listed[16].stored["against"] == "An animal"
    for others, said in ((["a"] * 18, "17 texts and 18 to compare with"), ([], "17 texts and 0")):
        with pytest.raises(EigenlensError, match=said):
            el.explain(mini, many, against=others, **few)


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
        r"without deletion: .* cannot run on an input with . tokens left \(sizes must match\)",
        found.notes[-1],
    )


def test_more_memory_than_allowed_is_refused_with_the_figure(llama):
    """Two layers of four heads, in single precision: patterns and gradients of T tokens are
    2·8·T²·4 bytes.
    """
    text = "cat " * 298  # and two special tokens
    needed = 2 * 8 * 300**2 * 4 / 1e9
    few = {"methods": ["attention"], "deletion": False}
    with pytest.raises(
        EigenlensError, match=rf"300 tokens takes {needed:.3g} GB.*8 heads.*limit is 0.005 GB"
    ):
        el.explain(llama, text, max_memory=0.005, **few)
    both = el.explain(llama, [text, text, "cat"], max_memory=0.006, **few)  # each for itself
    together = el.explain(llama, [text, "cat"], **few)
    np.testing.assert_allclose(
        both[2].scores["attention"], together[1].scores["attention"], rtol=1e-4
    )
    with pytest.raises(EigenlensError, match="must be above 0"):
        el.explain(llama, text, max_memory=0, **few)


def test_labels_and_notes_send_nothing_to_a_terminal(capsys):
    found = handmade()
    found.stored["target"]["label"] = "class \x1b]0;pwned\x07good"
    found.stored["model"]["name"] = "mi\u202eni"
    found.stored["notes"] = ["without \x1b[2J tokens"]
    show(found)
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert (
        "mi\\u202eni: class \\u001b]0;pwned\\u0007good" in out
        and "Note: without \\u001b[2J tokens." in out
    )


def test_where_areas_are_equal_nobody_wins():
    found = handmade()
    alike = [{**curve, "scores": [0.8, 0.2, 0.1], "auc": 0.325} for curve in found.deletion]
    assert (
        "alike in the order of every method (area 0.325, 0.325 at random)"
        in replace(found, deletion=alike).sentence
    )
    third = [
        {**curve, "method": "rollout", "auc": 0.4}
        for curve in found.deletion
        if curve["method"] == "random"
    ]
    two = replace(found, deletion=alike + third).sentence
    assert "soonest in the order of relevance and gradient × input (area 0.325" in two
    fixed = replace(found, special=[True] * 5)
    assert fixed.sentence == "Similarity to 'a dog': cosine 0.8; no token can be taken away."


BROKEN = {
    "huge": (("scores", "relevance", 0), 10**400),
    "huge score": (("facts", "score"), -(10**400)),
    "notes": (("facts", "notes"), None),
    "note": (("facts", "notes"), [1]),
    "data": (("facts", "data"), ["x"]),
    "versions": (("facts", "versions"), "x"),
    "version": (("facts", "versions", "eigenlens"), 1),
    "name": (("facts", "model", "name"), {}),
    "label": (("facts", "target", "label"), None),
    "nan inside": (("facts", "more"), [{"a": math.nan}]),
    "special": (("special", 0), math.nan),
    "position": (("facts", "target", "position"), 99),
    "seconds": (("facts", "seconds"), "x"),
    "grid of words": (("facts", "grid"), ["a", "b"]),
    "curve": (("deletion", 0, "method"), [1]),
    "picture": (("facts", "picture"), 3),
    "length": (("facts", "length"), 10**400),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_value_anywhere_is_refused(tmp_path, what):
    folder = handmade().save(tmp_path / "e")
    content = json.loads((folder / "explanation.json").read_text())
    (*path, last), bad = BROKEN[what]
    inner = content
    for key in path:
        inner = inner[key]
    inner[last] = bad
    (folder / "explanation.json").write_text(json.dumps(content))
    with pytest.raises(EigenlensError, match=r"explanation.* damaged|cannot be read"):
        Explanation.open(folder)


@pytest.mark.parametrize(
    "what", ["missing", "foreign", "format", "short", "nan", "facts", "order", "grid"]
)
def test_a_damaged_folder_is_refused_with_the_reason(tmp_path, what):
    folder = handmade().save(tmp_path / "e")
    path = folder / "explanation.json"
    content = json.loads(path.read_text())
    if what == "missing":
        path.unlink()
    elif what == "foreign":
        content = [1]
    elif what == "format":
        content["format"] = 99
    elif what == "short":
        content["scores"]["relevance"].pop()
    elif what == "nan":
        content["scores"]["relevance"][0] = math.nan
    elif what == "facts":
        del content["facts"]["target"]
    elif what == "order":
        content["deletion"][0]["order"] = "sideways"
    elif what == "grid":
        content["facts"]["grid"] = [9, 9]
    if what != "missing":
        path.write_text(json.dumps(content))
    with pytest.raises(EigenlensError, match="explanation"):
        Explanation.open(folder)


def test_a_notebook_shows_lines_and_runs_nothing():
    html = handmade(
        ("[CLS]", "<script>alert(1)</script>", '" onmouseover="x', "\u202eabc", "[SEP]")
    )._repr_html_()
    assert "<script" not in html and ' onmouseover="' not in html and "\u202e" not in html
    assert html.count("&lt;script&gt;") >= 3  # a line for each method
    assert "rgba(200, 64, 44, 0.60)" in html and "rgba(44, 111, 179" in html
    assert "<svg" in html  # the curves


def test_pictures_are_drawn(found):
    drawn = found.plot().to_dict()
    assert len(
        next(iter(drawn["datasets"].values())) if "datasets" in drawn else drawn["data"]["values"]
    ) == 10 * len(found.tokens)
    assert len(found.plot_deletion().to_dict()["hconcat"]) == 2
    maps = handmade(("cls", "0,0", "0,1", "1,0", "1,1"), grid=[2, 2]).plot().to_dict()
    assert maps["facet"]["field"] == "method"
    with pytest.raises(EigenlensError, match="without deletion"):
        replace(found, deletion=[]).plot_deletion()


def test_a_text_that_is_too_long_is_refused_with_both_lengths(mini):
    with pytest.raises(EigenlensError, match=rf"1,002 tokens.*{mini.max_length}"):
        el.explain(mini, "cat " * 1000, against="dog")


def test_what_does_not_exist_is_refused(llama, classifier, tokenizer):
    for target, said in (
        ("unbelievably good", "not one token"),
        (10**6, "no token 1000000"),
        ("", "no token"),
    ):
        with pytest.raises(EigenlensError, match=said):
            el.explain(llama, "the house", target=target)
    for target, said in (("best", "no class 'best'.*bad, good"), (2, "no class 2")):
        with pytest.raises(EigenlensError, match=said):
            el.explain(classifier, "the house", target=target, tokenizer=tokenizer)


def test_an_embedding_model_needs_something_to_compare_with(mini):
    with pytest.raises(EigenlensError, match="against"):
        el.explain(mini, "a cat")


@pytest.mark.parametrize("text", ["", "  \n", [], ["a cat", ""]])
def test_an_empty_text_is_refused(mini, text):
    with pytest.raises(EigenlensError, match="empty"):
        el.explain(mini, text, against="a dog")


@pytest.mark.parametrize("methods", [["relevence"], [], "nothing"])
def test_an_unknown_method_is_refused_with_those_there_are(mini, methods):
    with pytest.raises(EigenlensError, match=r"no method .*there are relevance, .*random"):
        el.explain(mini, "a cat", against="a dog", methods=methods)


@pytest.mark.download
def test_a_vision_model_needs_a_picture():
    with pytest.raises(EigenlensError, match="path of a picture"):
        el.explain(of_catalogue("dinov2-small"), "a cat sleeps", target="output")


def test_folders_that_are_there_stay(llama, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(EigenlensError, match="already exists"):
        el.explain(llama, "a cat", output_dir=tmp_path / "mine")
    (tmp_path / "mine" / "study.json").write_text("{}")
    with pytest.raises(EigenlensError, match="folder of a study"):
        el.explain(llama, "a cat", output_dir=tmp_path / "mine", overwrite=True)
