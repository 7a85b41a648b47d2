"""Targets that are a class, and their scores."""

import torch
import transformers as tf

from captures.families import TEXT, VISION
from eigenlens import load
from eigenlens.data.encode import encode
from eigenlens.explanations import target_of
from explanations.loaded import catalogue
from explanations.targets import classifier, score


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
