"""Targets that are an embedding: its similarity to another, or its norm."""

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

from captures.families import VISION
from eigenlens import load
from eigenlens.data.encode import encode
from eigenlens.explanations import observe
from explanations.loaded import catalogue
from explanations.targets import score
from tiny import small_bert


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
