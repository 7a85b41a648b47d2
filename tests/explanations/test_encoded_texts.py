"""Texts to be explained as a model's inputs, and fewer of their tokens."""

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

from captures.families import VISION
from eigenlens import EigenlensError, load
from eigenlens.data.encode import encode
from eigenlens.explanations import deletion_curves, target_of
from explanations.loaded import catalogue
from tiny import small_bert


def test_texts_that_cannot_be_encoded(tmp_path):
    model = catalogue("minilm")
    long = "word " * 600
    with pytest.raises(
        EigenlensError, match="the text has 602 tokens, but minilm takes at most 512"
    ):
        encode(model, long)
    for empty in ("", "  \n", []):
        with pytest.raises(EigenlensError, match="the text is empty"):
            encode(model, empty)
    with pytest.raises(EigenlensError, match="is not an encoder-decoder"):
        encode(model, "A text.", decoder="more")
    with pytest.raises(EigenlensError, match="is a plain module"):
        encode(load(nn.Linear(2, 2)), "A text.")
    with pytest.raises(EigenlensError, match="has no tokenizer"):
        encode(load(small_bert()), "A text.")
    vision = load(tf.ViTModel(tf.ViTConfig(**VISION)).eval())
    with pytest.raises(
        EigenlensError, match=r"takes the path of a picture .*'A text.' is not such a file"
    ):
        encode(vision, "A text.")
    (tmp_path / "no.png").write_text("not a picture")
    with pytest.raises(EigenlensError, match="cannot be read as a picture"):
        encode(vision, str(tmp_path / "no.png"))
    empty = encode(model, ["One.", "Two, and a bit more."])
    assert empty["attention_mask"].sum(1).tolist() == [4, 9] and empty["input_ids"].shape == (2, 9)


def test_half_characters_are_no_text():
    with pytest.raises(
        EigenlensError, match=r"the text is not valid UTF-8: character 3 is .*udce9"
    ):
        encode(catalogue("minilm"), ["One.", "caf\udce9"])


def test_what_a_model_does_not_take_is_one_sentence():
    model = load(small_bert())
    with pytest.raises(
        EigenlensError, match=r"BertModel cannot be run on this input: .*index"
    ) as raised:
        target_of(model, {"input_ids": torch.tensor([[10**6]])}, target="output")
    assert "\n" not in str(raised.value)


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
