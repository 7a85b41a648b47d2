"""Targets: what is explained, its score, and one clear sentence for every target that does not exist."""

import functools

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

from capture.families import TEXT, VISION
from eigenlens import EigenlensError, load
from eigenlens.explain import encode, target_of
from eigenlens.sources.forward import forward_of
from tiny import of_catalogue, small_bert, small_llama

catalogue = functools.cache(of_catalogue)  # loaded once for all tests here


def score(model, batch, **settings):
    target = target_of(model, batch, **settings)
    with torch.no_grad():
        return target, target.score(forward_of(model, whole=True)(batch), batch)


def test_the_next_token_of_a_decoder():
    model = catalogue("stories15m")
    texts = ["Once upon a time, there was a little", "Once upon a"]
    batch = encode(model, texts)  # the second is padded
    target, found = score(model, batch)
    for row, text in enumerate(texts):
        ids = torch.tensor([model.tokenizer(text)["input_ids"]])
        with torch.no_grad():
            log_p = model.module(ids).logits[0, -1].log_softmax(-1)
        torch.testing.assert_close(found[row], log_p.max(), rtol=0, atol=1e-4)
        assert target.labels[row] == f"next token {model.tokenizer.decode([int(log_p.argmax())])!r}"
    assert target.kind == "token" and target.unit == "log-probability" and target.label == "; ".join(target.labels)
    named, by_name = score(model, encode(model, texts[0]), target="girl")
    (index,) = model.tokenizer("girl", add_special_tokens=False)["input_ids"]
    torch.testing.assert_close(by_name, score(model, encode(model, texts[0]), target=index)[1])
    assert named.label == "next token 'girl'"
    swapped = target.of(torch.tensor([1, 0, 1]))
    ids = {name: x[[1, 0, 1]] for name, x in batch.items()}
    with torch.no_grad():
        again = swapped.score(forward_of(model, whole=True)(ids), ids)
    torch.testing.assert_close(again, found[[1, 0, 1]])
    assert swapped.labels == (target.labels[1], target.labels[0], target.labels[1])


def test_left_padding_reads_the_last_token_too():
    model = load(small_llama())
    ids = torch.randint(1, 50, (1, 5))
    _, want = score(model, {"input_ids": ids}, target=7)
    padded = F.pad(ids, (3, 0))
    _, found = score(model, {"input_ids": padded, "attention_mask": (torch.arange(8) >= 3).long()[None]}, target=7)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


def test_the_next_token_of_an_encoder_decoder():
    model = catalogue("flan-t5-small")
    batch = encode(model, "translate English to German: The house is wonderful.")
    target, found = score(model, batch)
    assert target.label == "next token 'Das'"
    with torch.no_grad():
        logits = model.module(input_ids=batch["input_ids"], decoder_input_ids=torch.tensor([[0]])).logits
    torch.testing.assert_close(found[0], logits[0, 0].log_softmax(-1).max())
    behind = encode(model, "translate English to German: The house is wonderful.", decoder="Das Haus")
    assert behind["decoder_input_ids"].tolist() == [[0, *model.tokenizer("Das Haus", add_special_tokens=False)["input_ids"]]]
    assert target_of(model, behind).label == "next token 'ist'"


def classifier(classes=3, names=("bad", "fair", "good")):
    torch.manual_seed(0)
    config = tf.BertConfig(**TEXT, num_labels=classes, id2label=dict(enumerate(names)), initializer_range=0.5)
    return load(tf.BertForSequenceClassification(config).eval())


def test_a_class_by_index_label_and_choice():
    model, batch = classifier(), {"input_ids": torch.randint(3, 99, (4, 6))}
    with torch.no_grad():
        p = model.module(**batch).logits.softmax(-1)
    target, found = score(model, batch)
    torch.testing.assert_close(torch.sigmoid(found), p.max(-1).values)  # log-odds
    for asked in (2, "good", "GOOD", "2"):
        target, found = score(model, batch, target=asked)
        torch.testing.assert_close(torch.sigmoid(found), p[:, 2])
        assert (target.kind, target.label, target.unit) == ("class", "class 2, good", "log-odds")


def test_one_class_alone_is_its_logit():
    model, batch = classifier(1, ("height",)), {"input_ids": torch.randint(3, 99, (2, 6))}
    with torch.no_grad():
        logits = model.module(**batch).logits[:, 0]
    torch.testing.assert_close(score(model, batch)[1], logits)


def test_a_class_of_a_picture():
    config = tf.ViTConfig(**VISION, num_labels=3, id2label={0: "cat", 1: "dog", 2: "owl"})
    model, batch = load(tf.ViTForImageClassification(config).eval()), {"pixel_values": torch.randn(2, 3, 16, 16)}
    target, found = score(model, batch, target="dog")
    with torch.no_grad():
        z = model.module(**batch).logits
    torch.testing.assert_close(torch.sigmoid(found), z.softmax(-1)[:, 1])
    assert target.label == "class 1, dog"


def test_the_label_of_a_token():
    model = catalogue("distilbert-gec")
    batch = encode(model, ["Their is a problem with the car.", "He go home."])
    target, found = score(model, batch)
    with torch.no_grad():
        p = model.module(**batch).logits.softmax(-1)
    p[:, :, 0] = 0  # $KEEP
    p[:, 0] = 0  # [CLS]
    for row, end in enumerate(batch["attention_mask"].sum(1).tolist()):
        best = int(p[row, : end - 1].flatten().argmax())  # before [SEP]
        assert int(target.position[row]) == best // p.shape[2]
        torch.testing.assert_close(torch.sigmoid(found[row]), p[row].flatten()[best], rtol=0, atol=1e-5)
    assert target.labels[0] == "class 18, $REPLACE_There of token 1 'Their'"
    for asked in ((1, "$REPLACE_There"), "1:$REPLACE_There", (1, 18)):
        one, alike = score(model, encode(model, "Their is a problem with the car."), target=asked)
        torch.testing.assert_close(alike, found[:1], rtol=1e-4, atol=1e-4)
        assert one.label == target.labels[0]


def test_a_token_behind_a_mask():
    torch.manual_seed(0)
    tokenizer = catalogue("minilm").tokenizer
    config = tf.BertConfig(**{**TEXT, "vocab_size": len(tokenizer)})
    model = load(tf.BertForMaskedLM(config).eval(), tokenizer=tokenizer)
    batch = encode(model, "The cat [MASK] on the mat.")
    target, found = score(model, batch)
    with torch.no_grad():
        p = model.module(**batch).logits[0, 3].softmax(-1)
    torch.testing.assert_close(torch.sigmoid(found[0]), p.max())
    assert target.position.tolist() == [3] and target.label.endswith("of token 3 '[MASK]'")
    assert target_of(model, batch, target="sat").label.startswith("'sat' of token 3")
    with pytest.raises(EigenlensError, match=r"put a \[MASK\] into the text"):
        target_of(model, encode(model, "The cat sat on the mat."))


def test_similarity_is_the_cosine_of_the_means():
    model = catalogue("minilm")
    texts, other = ["A cat on a mat.", "Stocks fell sharply on Monday morning."], "A kitten on a rug."
    batch = encode(model, texts)
    target, found = score(model, batch, against=other)

    def mean(text):
        with torch.no_grad():
            return model.module(**model.tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)

    want = torch.stack([F.cosine_similarity(mean(text), mean(other), dim=0) for text in texts])
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)
    assert (target.kind, target.label) == ("similarity", "similarity to 'A kitten on a rug.'")
    crossed = score(model, batch, against=texts[::-1])[1]
    pair = F.cosine_similarity(mean(texts[0]), mean(texts[1]), dim=0)
    torch.testing.assert_close(crossed, pair.expand(2), rtol=0, atol=1e-5)


def test_the_norm_of_the_output():
    model, batch = load(small_bert()), {"input_ids": torch.randint(0, 50, (2, 5))}
    target, found = score(model, batch, target="output")
    with torch.no_grad():
        want = model.module(**batch).last_hidden_state.mean(1).square().sum(1)
    torch.testing.assert_close(found, want)
    assert target.of(torch.tensor([1])) is target
    plain, x = load(nn.Linear(4, 3)), torch.randn(2, 5, 4)
    torch.testing.assert_close(score(plain, {"x": x}, target="output")[1], plain.module(x).mean(1).square().sum(1).detach())


WRONG = [
    ("stories15m", {"target": 10**6}, "there is no token 1000000; the vocabulary of stories15m has 32,000, counted from 0"),
    ("stories15m", {"target": -1}, "there is no token -1"),
    ("stories15m", {"target": "a little girl"}, "'a little girl' is not one token of stories15m but 3"),
    ("stories15m", {"target": True}, "the target True is no token"),
    ("stories15m", {"target": ""}, "the target '' is no token"),
    ("stories15m", {"against": "another text"}, "no similarity to another input to explain: stories15m has a head"),
    ("minilm", {}, "minilm has no head: give a second text to compare with"),
    ("minilm", {"target": 3}, "minilm has no head, so it has no target 3"),
    ("minilm", {"target": "output", "against": "another"}, "not both"),
    ("minilm", {"against": ""}, "the text is empty"),
    ("minilm", {"against": ["one", "two", "three"]}, "3 inputs to compare with were given for 1"),
    ("distilbert-gec", {"target": (99, 1)}, "there is no token 99; the shortest input has"),
    ("distilbert-gec", {"target": (1, 999)}, "there is no class 999; distilbert-gec has 213, counted from 0"),
    ("distilbert-gec", {"target": "1:NOUN"}, "distilbert-gec has no class 'NOUN'; it has .KEEP, .DELETE"),
    ("distilbert-gec", {"target": 5}, "gives every token a label: the target is .position, class."),
]


@pytest.mark.parametrize(("name", "settings", "message"), WRONG)
def test_a_target_that_does_not_exist(name, settings, message):
    model = catalogue(name)
    with pytest.raises(EigenlensError, match=message) as raised:
        target_of(model, encode(model, "Once upon a time"), **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("target", "message"), [(7, "there is no class 7"), ("ugly", "no class 'ugly'; it has bad, fair, good")]
)
def test_a_class_that_does_not_exist(target, message):
    with pytest.raises(EigenlensError, match=message):
        target_of(classifier(), {"input_ids": torch.randint(3, 99, (1, 6))}, target=target)


def test_a_plain_module_must_be_told():
    model = load(nn.Linear(4, 3))
    with pytest.raises(EigenlensError, match='the target "output"'):
        target_of(model, {"x": torch.randn(2, 5, 4)})
    assert target_of(model, {"x": torch.randn(2, 5, 4)}, target=(-1, None)).position.tolist() == [4, 4]


def test_texts_that_cannot_be_encoded(tmp_path):
    model = catalogue("minilm")
    long = "word " * 600
    with pytest.raises(EigenlensError, match="the text has 602 tokens, and minilm takes at most 512"):
        encode(model, long)
    for empty in ("", "  \n", []):
        with pytest.raises(EigenlensError, match="the text is empty"):
            encode(model, empty)
    with pytest.raises(EigenlensError, match="has no decoder beside an encoder"):
        encode(model, "A text.", decoder="more")
    with pytest.raises(EigenlensError, match="is a plain module"):
        encode(load(nn.Linear(2, 2)), "A text.")
    with pytest.raises(EigenlensError, match="has no tokenizer"):
        encode(load(small_bert()), "A text.")
    vision = load(tf.ViTModel(tf.ViTConfig(**VISION)).eval())
    with pytest.raises(EigenlensError, match=r"takes the path of a picture .*'A text.' is no such file"):
        encode(vision, "A text.")
    (tmp_path / "no.png").write_text("not a picture")
    with pytest.raises(EigenlensError, match="is no picture that can be read"):
        encode(vision, str(tmp_path / "no.png"))
    empty = encode(model, ["One.", "Two, and a bit more."])
    assert empty["attention_mask"].sum(1).tolist() == [4, 9] and empty["input_ids"].shape == (2, 9)
