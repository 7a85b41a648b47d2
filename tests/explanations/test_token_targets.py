"""Targets that are a token or its label, and their scores."""

import pytest
import torch
import torch.nn.functional as F
import transformers as tf

from captures.families import TEXT
from eigenlens import EigenlensError, load
from eigenlens.data.encode import encode
from eigenlens.explanations import target_of
from eigenlens.models.forward import forward_of
from explanations.loaded import catalogue
from explanations.targets import score
from tiny import small_llama


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


def test_labels_of_a_decoders_tokens():
    torch.manual_seed(0)
    model = load(tf.LlamaForTokenClassification(tf.LlamaConfig(**TEXT, num_labels=3)).eval())
    batch = {"input_ids": torch.randint(3, 99, (1, 6))}
    target, found = score(model, batch, target=(2, 1))
    with torch.no_grad():
        p = model.module(**batch).logits[0, 2].softmax(-1)
    torch.testing.assert_close(torch.sigmoid(found[0]), p[1])
    assert target.kind == "class" and target.position.tolist() == [2]


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
