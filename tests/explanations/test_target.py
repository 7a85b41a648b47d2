"""Targets: what is explained, its score, and one clear sentence for every target that does not
exist.
"""

import functools

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

from captures.families import TEXT, VISION
from eigenlens import EigenlensError, load
from eigenlens.data.encode import encode
from eigenlens.explanations import deletion_curves, observe, target_of
from eigenlens.models.forward import forward_of
from tiny import of_catalogue, small_bert, small_llama

catalogue = functools.cache(of_catalogue)  # loaded once for all tests here


def score(model, batch, **settings):
    target = target_of(model, batch, **settings)
    with torch.no_grad():
        return target, target.score(forward_of(model, with_head=True)(batch), batch)


@pytest.mark.download
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
    assert (
        target.kind == "token"
        and target.unit == "log-probability"
        and target.label == "; ".join(target.labels)
    )
    named, by_name = score(model, encode(model, texts[0]), target="girl")
    (index,) = model.tokenizer("girl", add_special_tokens=False)["input_ids"]
    torch.testing.assert_close(by_name, score(model, encode(model, texts[0]), target=index)[1])
    assert named.label == "next token 'girl'"
    swapped = target.of(torch.tensor([1, 0, 1]))
    ids = {name: x[[1, 0, 1]] for name, x in batch.items()}
    with torch.no_grad():
        again = swapped.score(forward_of(model, with_head=True)(ids), ids)
    torch.testing.assert_close(again, found[[1, 0, 1]])
    assert swapped.labels == (target.labels[1], target.labels[0], target.labels[1])


def test_left_padding_reads_the_last_token_too():
    model = load(small_llama())
    ids = torch.randint(1, 50, (1, 5))
    _, want = score(model, {"input_ids": ids}, target=7)
    padded = F.pad(ids, (3, 0))
    _, found = score(
        model,
        {"input_ids": padded, "attention_mask": (torch.arange(8) >= 3).long()[None]},
        target=7,
    )
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


@pytest.mark.download
def test_the_next_token_of_an_encoder_decoder():
    model = catalogue("flan-t5-small")
    batch = encode(model, "translate English to German: The house is wonderful.")
    target, found = score(model, batch)
    assert target.label == "next token 'Das'"
    with torch.no_grad():
        logits = model.module(
            input_ids=batch["input_ids"], decoder_input_ids=torch.tensor([[0]])
        ).logits
    torch.testing.assert_close(found[0], logits[0, 0].log_softmax(-1).max())
    behind = encode(
        model, "translate English to German: The house is wonderful.", decoder="Das Haus"
    )
    assert behind["decoder_input_ids"].tolist() == [
        [0, *model.tokenizer("Das Haus", add_special_tokens=False)["input_ids"]]
    ]
    assert target_of(model, behind).label == "next token 'ist'"


def classifier(classes=3, names=("bad", "fair", "good")):
    torch.manual_seed(0)
    config = tf.BertConfig(
        **TEXT, num_labels=classes, id2label=dict(enumerate(names)), initializer_range=0.5
    )
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
    model, batch = (
        load(tf.ViTForImageClassification(config).eval()),
        {"pixel_values": torch.randn(2, 3, 16, 16)},
    )
    target, found = score(model, batch, target="dog")
    with torch.no_grad():
        z = model.module(**batch).logits
    torch.testing.assert_close(torch.sigmoid(found), z.softmax(-1)[:, 1])
    assert target.label == "class 1, dog"


@pytest.mark.download
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
        torch.testing.assert_close(
            torch.sigmoid(found[row]), p[row].flatten()[best], rtol=0, atol=1e-5
        )
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
    texts, other = (
        ["A cat on a mat.", "Stocks fell sharply on Monday morning."],
        "A kitten on a rug.",
    )
    batch = encode(model, texts)
    target, found = score(model, batch, against=other)

    def mean(text):
        with torch.no_grad():
            return (
                model.module(**model.tokenizer(text, return_tensors="pt"))
                .last_hidden_state[0]
                .mean(0)
            )

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
    torch.testing.assert_close(
        score(plain, {"x": x}, target="output")[1], plain.module(x).mean(1).square().sum(1).detach()
    )


WRONG = [
    (
        "stories15m",
        {"target": 10**6},
        "there is no token 1000000; the vocabulary of stories15m has 32,000, counted from 0",
    ),
    ("stories15m", {"target": -1}, "there is no token -1"),
    (
        "stories15m",
        {"target": "a little girl"},
        "'a little girl' is not one token of stories15m but 3",
    ),
    ("stories15m", {"target": True}, "the target True is no token"),
    ("stories15m", {"target": ""}, "the target '' is no token"),
    (
        "stories15m",
        {"against": "another text"},
        "no similarity to another input to explain: stories15m has a head",
    ),
    ("minilm", {}, "minilm has no head: give a second text to compare with"),
    ("minilm", {"target": 3}, "minilm has no head, so it has no target 3"),
    ("minilm", {"target": "output", "against": "another"}, "not both"),
    ("minilm", {"against": ""}, "the text is empty"),
    ("minilm", {"against": ["one", "two", "three"]}, "3 inputs to compare with were given for 1"),
    ("distilbert-gec", {"target": (99, 1)}, "there is no token 99; the shortest input has"),
    (
        "distilbert-gec",
        {"target": (1, 999)},
        "there is no class 999; distilbert-gec has 213, counted from 0",
    ),
    (
        "distilbert-gec",
        {"target": "1:NOUN"},
        "distilbert-gec has no class 'NOUN'; it has .KEEP, .DELETE",
    ),
    ("distilbert-gec", {"target": 5}, "gives every token a label: the target is .position, class."),
    (
        "distilbert-gec",
        {"target": "--1:x"},
        "the target is .position, class. or 'position:class', not '--1:x'",
    ),
    ("distilbert-gec", {"target": "²:x"}, "the target is .position, class."),
    ("distilbert-gec", {"target": "2:²"}, "distilbert-gec has no class '²'"),
    ("distilbert-gec", {"target": "2:" + "9" * 5000}, "distilbert-gec has no class '999"),
    ("distilbert-gec", {"target": ("a", 1)}, "there is no token 'a'"),
    ("stories15m", {"target": "id:99999"}, "there is no token 99999"),
    ("stories15m", {"target": "1234"}, "give one of them, or an id as id:1234"),
    ("stories15m", {"against": "another text"}, "leave out the other input"),
    ("stories15m", {"target": "caf\udce9"}, "the target is no text in UTF-8: character 3"),
    ("minilm", {"against": "caf\udce9"}, "the text to compare with is no text in UTF-8"),
]


@pytest.mark.parametrize(("name", "settings", "message"), WRONG)
def test_a_target_that_does_not_exist(name, settings, message):
    model = catalogue(name)
    with pytest.raises(EigenlensError, match=message) as raised:
        target_of(model, encode(model, "Once upon a time"), **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [(7, "there is no class 7"), ("ugly", "no class 'ugly'; it has bad, fair, good")],
)
def test_a_class_that_does_not_exist(target, message):
    with pytest.raises(EigenlensError, match=message):
        target_of(classifier(), {"input_ids": torch.randint(3, 99, (1, 6))}, target=target)


def test_a_plain_module_must_be_told():
    model = load(nn.Linear(4, 3))
    with pytest.raises(EigenlensError, match='the target "output"'):
        target_of(model, {"x": torch.randn(2, 5, 4)})
    assert target_of(model, {"x": torch.randn(2, 5, 4)}, target=(-1, None)).position.tolist() == [
        4,
        4,
    ]


def test_texts_that_cannot_be_encoded(tmp_path):
    model = catalogue("minilm")
    long = "word " * 600
    with pytest.raises(
        EigenlensError, match="the text has 602 tokens, and minilm takes at most 512"
    ):
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
    with pytest.raises(
        EigenlensError, match=r"takes the path of a picture .*'A text.' is no such file"
    ):
        encode(vision, "A text.")
    (tmp_path / "no.png").write_text("not a picture")
    with pytest.raises(EigenlensError, match="is no picture that can be read"):
        encode(vision, str(tmp_path / "no.png"))
    empty = encode(model, ["One.", "Two, and a bit more."])
    assert empty["attention_mask"].sum(1).tolist() == [4, 9] and empty["input_ids"].shape == (2, 9)


def test_half_characters_are_no_text():
    with pytest.raises(
        EigenlensError, match=r"the text is no text in UTF-8: character 3 is .*udce9"
    ):
        encode(catalogue("minilm"), ["One.", "caf\udce9"])


def test_a_token_by_its_id():
    # has no tokenizer
    model, batch = load(small_llama()), {"input_ids": torch.randint(0, 50, (1, 6))}
    torch.testing.assert_close(
        score(model, batch, target="id:7")[1], score(model, batch, target=7)[1]
    )
    with pytest.raises(
        EigenlensError,
        match="has no tokenizer, so the target '7' cannot be found; give an id as id:1234",
    ):
        target_of(model, batch, target="7")


def test_each_class_of_several_that_may_hold_stands_alone():
    torch.manual_seed(0)
    config = tf.BertConfig(
        **TEXT, num_labels=3, problem_type="multi_label_classification", initializer_range=0.5
    )
    model, batch = (
        load(tf.BertForSequenceClassification(config).eval()),
        {"input_ids": torch.randint(3, 99, (4, 6))},
    )
    with torch.no_grad():
        p = model.module(**batch).logits.sigmoid()
    target, found = score(model, batch, target=1)
    torch.testing.assert_close(found, (p[:, 1] / (1 - p[:, 1])).log())
    assert target.unit == "log-odds"
    with torch.no_grad():
        again = target.of(torch.tensor([2])).score(
            model.module(input_ids=batch["input_ids"][2:3]), batch
        )
    torch.testing.assert_close(again, found[2:3])


def test_a_regression_has_an_output_and_no_odds():
    assert (
        target_of(classifier(1, ("height",)), {"input_ids": torch.randint(3, 99, (2, 6))}).unit
        == "output"
    )


@pytest.mark.parametrize("family", ["Siglip", "ViT"])
def test_the_embedding_of_a_picture_is_its_class_token_or_the_mean_of_patches(family):
    torch.manual_seed(0)
    config = tf.SiglipVisionConfig(**VISION) if family == "Siglip" else tf.ViTConfig(**VISION)
    model = load(
        (tf.SiglipVisionModel(config) if family == "Siglip" else tf.ViTModel(config)).eval()
    )
    batch = {"pixel_values": torch.randn(2, 3, config.image_size, config.image_size)}
    with torch.no_grad():
        hidden = model.module(**batch).last_hidden_state
    want = hidden.mean(1) if family == "Siglip" else hidden[:, 0]
    target, found = score(model, batch, target="output")
    torch.testing.assert_close(found, want.square().sum(1))
    read = observe(model, batch, target).reads()
    assert int((read > 1e-6).sum(1).min()) == (hidden.shape[1] if family == "Siglip" else 1)


HEADS = {
    "ElectraForPreTraining": lambda: tf.ElectraForPreTraining(
        tf.ElectraConfig(**TEXT, embedding_size=16)
    ),
    "BertForQuestionAnswering": lambda: tf.BertForQuestionAnswering(tf.BertConfig(**TEXT)),
    "BertForPreTraining": lambda: tf.BertForPreTraining(tf.BertConfig(**TEXT)),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("tokens", [2, 5])
@pytest.mark.parametrize("settings", [{}, {"target": 0}, {"target": "output"}, {"against": "x"}])
def test_heads_that_are_not_understood(head, tokens, settings):
    with pytest.raises(
        EigenlensError, match=f"has a head that is not understood .{head} gives .*logits"
    ):
        target_of(load(HEADS[head]()), {"input_ids": torch.randint(3, 99, (1, tokens))}, **settings)


def test_labels_of_a_decoders_tokens():
    torch.manual_seed(0)
    model = load(tf.LlamaForTokenClassification(tf.LlamaConfig(**TEXT, num_labels=3)).eval())
    batch = {"input_ids": torch.randint(3, 99, (1, 6))}
    target, found = score(model, batch, target=(2, 1))
    with torch.no_grad():
        p = model.module(**batch).logits[0, 2].softmax(-1)
    torch.testing.assert_close(torch.sigmoid(found[0]), p[1])
    assert target.kind == "class" and target.position.tolist() == [2]


def test_what_a_model_does_not_take_is_one_sentence():
    model = load(small_bert())
    with pytest.raises(
        EigenlensError, match=r"BertModel cannot be run on this input: .*index"
    ) as raised:
        target_of(model, {"input_ids": torch.tensor([[10**6]])}, target="output")
    assert "\n" not in str(raised.value)


def test_a_classifier_with_a_decoder_feeds_it_itself():
    torch.manual_seed(0)
    tokenizer = catalogue("minilm").tokenizer
    sizes = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    }
    config = tf.BartConfig(
        vocab_size=len(tokenizer), d_model=32, max_position_embeddings=64, eos_token_id=102, **sizes
    )
    model = load(tf.BartForSequenceClassification(config).eval(), tokenizer=tokenizer)
    batch = encode(model, "A fine day")
    assert "decoder_input_ids" not in batch
    with torch.no_grad():
        p = model.module(**tokenizer("A fine day", return_tensors="pt")).logits.softmax(-1)
    torch.testing.assert_close(torch.sigmoid(score(model, batch)[1]), p.max(-1).values)


def test_one_text_without_a_pad_token_loses_tokens_too():
    torch.manual_seed(0)
    config = tf.GPT2Config(
        vocab_size=99,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        num_labels=3,
        pad_token_id=None,
    )
    model, ids = load(tf.GPT2ForSequenceClassification(config).eval()), torch.randint(3, 90, (1, 6))
    target = target_of(model, {"input_ids": ids}, target=1)
    scores = {"x": torch.arange(6.0)[None], "y": -torch.arange(6.0)[None]}
    first = deletion_curves(
        model, {"input_ids": ids}, target, scores, torch.arange(6)[None] == 0, (0, 0.6)
    )[0]
    with torch.no_grad():
        p = model.module(ids[:, :3]).logits.softmax(-1)[0, 1]
    assert float(first.scores[0, 1].sigmoid()) == pytest.approx(float(p), abs=1e-6)
    with pytest.raises(EigenlensError, match=r"cannot be run on this input: .*padding token"):
        target_of(model, {"input_ids": ids.expand(2, -1)})


@pytest.mark.download
def test_padding_on_the_left_does_not_count_as_tokens():
    model = catalogue("distilbert-gec")
    one = encode(model, "Their is a problem.")
    padded = {name: F.pad(x, (3, 0)) for name, x in one.items()}
    for at in (1, -2):
        want, found = (target_of(model, batch, target=(at, None)) for batch in (one, padded))
        assert found.label == want.label and "[PAD]" not in found.label
        assert (found.position - want.position).tolist() == [3]
    with pytest.raises(
        EigenlensError, match="there is no token 8; the shortest input has 7 tokens"
    ):
        target_of(model, padded, target=(8, None))


class Wordless:
    """A tokenizer without a vocabulary, as whisper's is in the catalogue."""

    def __call__(self, text, **_):
        return {"input_ids": []}

    def convert_ids_to_tokens(self, ids):
        return []

    def __len__(self):
        return 1


def test_a_tokenizer_without_a_vocabulary_leaves_ids():
    model, batch = (
        load(small_llama(), tokenizer=Wordless()),
        {"input_ids": torch.randint(0, 50, (1, 6))},
    )
    assert target_of(model, batch, target="id:7").label == "next token 7"
    with pytest.raises(
        EigenlensError, match="has no token for the target '7'; give an id as id:1234"
    ):
        target_of(model, batch, target="7")
