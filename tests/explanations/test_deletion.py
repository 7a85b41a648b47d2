"""Tokens are really taken away: curves against inputs shortened by hand, one by one."""

import numpy as np
import pytest
import torch
import transformers as tf

from captures.families import TEXT, VISION
from eigenlens import EigenlensError, load
from eigenlens.data.encode import encode
from eigenlens.explanations import deletion_curves, target_of
from eigenlens.explanations.deletion import FRACTIONS
from eigenlens.explanations.removal import special_positions
from eigenlens.lab import Transformer
from eigenlens.lab.config import Config
from explanations.loaded import catalogue


def kept(scores, free, fraction, order):
    """The positions of `free` that are left, by a plain sort."""
    ranked = sorted(free, key=lambda i: (-scores[i], i))
    ranked = ranked if order == "positive" else ranked[::-1]
    return sorted(ranked[round(fraction * len(ranked)) :])


def area(curve):
    return sum(
        (b - a) * (x + y) / 2 for a, b, x, y in zip(FRACTIONS, FRACTIONS[1:], curve, curve[1:])
    )


@torch.no_grad()
def test_a_text_loses_ids_and_closes_up():
    model = catalogue("minilm")
    texts, other = (
        ["The cat sat on the mat.", "Stocks fell on Monday, and nobody knew why."],
        "A kitten rests.",
    )
    batch = encode(model, texts)
    target = target_of(model, batch, against=other)
    scores = {
        "one": torch.randn(batch["input_ids"].shape),
        "two": torch.randn(batch["input_ids"].shape),
    }
    found = deletion_curves(model, batch, target, scores, batch_size=7)
    assert [(d.method, d.order) for d in found] == [
        (name, order) for name in ("one", "two") for order in ("positive", "negative")
    ]

    def mean(ids):
        return model.module(torch.tensor([ids])).last_hidden_state[0].mean(0)

    reference = mean(model.tokenizer(other)["input_ids"])
    for deletion in found:
        for row, text in enumerate(texts):
            ids = model.tokenizer(text)["input_ids"]
            curve = []
            for fraction in FRACTIONS:
                left = kept(
                    scores[deletion.method][row].tolist(),
                    range(1, len(ids) - 1),
                    fraction,
                    deletion.order,
                )
                shorter = [ids[i] for i in [0, *left, len(ids) - 1]]
                curve.append(float(torch.cosine_similarity(mean(shorter), reference, dim=0)))
            np.testing.assert_allclose(deletion.scores[row], curve, atol=1e-5)
            assert float(deletion.auc[row]) == pytest.approx(area(curve), abs=1e-5)
    assert len(found[0].rows()) == 2 * len(FRACTIONS) and "over 2 inputs" in found[0].sentence
    assert "<svg" in found[0]._repr_html_()


@pytest.mark.download
@torch.no_grad()
def test_a_decoder_keeps_the_token_it_speaks_after():
    model = catalogue("stories15m")
    batch = encode(model, "Once upon a time, there was a little")
    target = target_of(model, batch)
    ids = batch["input_ids"][0].tolist()
    scores = torch.arange(len(ids), dtype=torch.float)[None]
    positive, negative = deletion_curves(model, batch, target, {"place": scores})
    word = int(model.module(batch["input_ids"]).logits[0, -1].argmax())
    for deletion in (positive, negative):
        for place, fraction in enumerate(FRACTIONS):
            left = kept(scores[0].tolist(), range(1, len(ids) - 1), fraction, deletion.order)
            shorter = torch.tensor([[ids[i] for i in [0, *left, len(ids) - 1]]])
            want = model.module(shorter).logits[0, -1].log_softmax(-1)[word]
            assert float(deletion.scores[0, place]) == pytest.approx(float(want), abs=1e-4)


@pytest.mark.download
@torch.no_grad()
def test_an_encoder_decoder_loses_what_its_encoder_reads():
    model = catalogue("flan-t5-small")
    batch = encode(model, "translate English to German: The house is wonderful.")
    target = target_of(model, batch)
    scores = torch.randn(batch["input_ids"].shape)
    positive, _ = deletion_curves(model, batch, target, {"any": scores}, fractions=(0, 0.5, 1))
    ids = batch["input_ids"][0].tolist()
    word = int(model.module(**batch).logits[0, -1].argmax())
    for place, fraction in enumerate((0, 0.5, 1)):
        left = kept(scores[0].tolist(), range(len(ids) - 1), fraction, "positive")
        shorter = torch.tensor([[ids[i] for i in [*left, len(ids) - 1]]])
        want = (
            model.module(input_ids=shorter, decoder_input_ids=batch["decoder_input_ids"])
            .logits[0, -1]
            .log_softmax(-1)
        )
        assert float(positive.scores[0, place]) == pytest.approx(float(want[word]), abs=1e-4)


@torch.no_grad()
def test_the_label_of_a_token_moves_with_it():
    torch.manual_seed(0)
    model = load(
        tf.BertForTokenClassification(
            tf.BertConfig(**TEXT, num_labels=4, initializer_range=0.5)
        ).eval()
    )
    batch = {
        "input_ids": torch.randint(3, 99, (2, 8)),
        "token_type_ids": torch.tensor([[0] * 4 + [1] * 4] * 2),
    }
    target = target_of(model, batch, target=(5, 2))
    scores = torch.randn(2, 8)
    positive, _ = deletion_curves(model, batch, target, {"any": scores}, fractions=(0, 0.5, 1))
    for row in range(2):
        for place, fraction in enumerate((0, 0.5, 1)):
            left = sorted(
                [5, *kept(scores[row].tolist(), [0, 1, 2, 3, 4, 6, 7], fraction, "positive")]
            )
            given = {name: x[row : row + 1, left] for name, x in batch.items()}
            p = model.module(**given).logits[0, left.index(5)].softmax(-1)[2]
            assert float(torch.sigmoid(positive.scores[row, place])) == pytest.approx(
                float(p), abs=1e-5
            )


@torch.no_grad()
@pytest.mark.parametrize("family", ["vit", "dinov2"])
def test_a_picture_loses_patches_and_the_rest_keep_their_positions(family):
    torch.manual_seed(0)
    if family == "vit":
        config = tf.ViTConfig(**VISION, num_labels=3)
        module = tf.ViTForImageClassification(config).eval()
        parts = module.vit, module.vit.layernorm, module.classifier
    else:
        names = (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "image_size",
            "patch_size",
        )
        module = tf.Dinov2ForImageClassification(
            tf.Dinov2Config(**{n: VISION[n] for n in names}, num_labels=3)
        ).eval()
        parts = module.dinov2, module.dinov2.layernorm, module.classifier
    for parameter in module.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0, 0.2)
    backbone, norm, head = parts
    model, batch = load(module), {"pixel_values": torch.randn(2, 3, 16, 16)}
    assert special_positions(model, batch, 17).tolist() == [[True] + [False] * 16] * 2
    target = target_of(model, batch, target=1)
    scores = torch.randn(2, 17)
    fractions = (0, 0.25, 0.9, 1)
    found = deletion_curves(model, batch, target, {"any": scores}, fractions=fractions)
    blocks = [
        part for part in module.modules() if type(part).__name__ in {"ViTLayer", "Dinov2Layer"}
    ]
    assert len(blocks) == 2
    for deletion in found:
        for row in range(2):
            for place, fraction in enumerate(fractions):
                x = backbone.embeddings(batch["pixel_values"][row : row + 1])
                # a head that averages patches keeps one
                last = 15 / 16 if family == "dinov2" else 1
                x = x[
                    :,
                    [
                        0,
                        *kept(
                            scores[row].tolist(), range(1, 17), min(fraction, last), deletion.order
                        ),
                    ],
                ]
                for block in blocks:
                    x = block(x)
                    x = x if torch.is_tensor(x) else x[0]
                x = norm(x)
                z = head(x[:, 0] if family == "vit" else torch.cat([x[:, 0], x[:, 1:].mean(1)], 1))[
                    0
                ]
                assert float(torch.sigmoid(deletion.scores[row, place])) == pytest.approx(
                    float(z.softmax(-1)[1]), abs=1e-5
                )


@pytest.mark.parametrize("family", ["beit", "dinov3"])
def test_a_model_with_positions_inside_its_blocks_is_named(family):
    torch.manual_seed(0)
    if family == "beit":
        config = tf.BeitConfig(**VISION, num_labels=3, use_relative_position_bias=True)
        model = load(tf.BeitForImageClassification(config).eval())
    else:
        model = load(tf.DINOv3ViTModel(tf.DINOv3ViTConfig(**VISION, num_register_tokens=2)).eval())
    batch = {"pixel_values": torch.randn(1, 3, 16, 16)}
    target = target_of(model, batch, target=1 if family == "beit" else "output")
    tokens = 17 if family == "beit" else 19
    with pytest.raises(
        EigenlensError, match=r"cannot run on an input with .* left, .* positions inside its blocks"
    ):
        deletion_curves(model, batch, target, {"any": torch.randn(1, tokens)})


def test_positions_that_were_given_are_counted_anew():
    model = catalogue("minilm")
    batch = encode(model, "The cat sat on the mat.")
    target, scores = (
        target_of(model, batch, against="A kitten."),
        torch.randn(batch["input_ids"].shape),
    )
    want, _ = deletion_curves(model, batch, target, {"any": scores}, fractions=(0, 0.5))
    more = {**batch, "position_ids": torch.arange(scores.shape[1])[None]}
    found, _ = deletion_curves(model, more, target, {"any": scores}, fractions=(0, 0.5))
    torch.testing.assert_close(found.scores, want.scores)


@torch.no_grad()
def test_a_plain_module_loses_tokens():
    torch.manual_seed(0)
    model = load(
        Transformer(
            Config(vocabulary=20, length=9, width=16, layers=1, heads=2, classes=3, pooled=True)
        ).eval()
    )
    batch = {"inputs": torch.randint(0, 20, (3, 9))}
    target, scores = target_of(model, batch, target=1), torch.randn(3, 9)
    positive, _ = deletion_curves(model, batch, target, {"any": scores}, fractions=(0, 0.5))
    for row in range(3):
        # an input keeps at least one token: the first
        left = kept(scores[row].tolist(), range(1, 9), 0.5, "positive")
        p = model.module(batch["inputs"][row : row + 1, [0, *left]]).softmax(-1)[0, 1]
        assert float(torch.sigmoid(positive.scores[row, 1])) == pytest.approx(float(p), abs=1e-5)


@torch.no_grad()
def test_tokens_to_keep_can_be_given_and_padding_is_no_token():
    model = catalogue("minilm")
    batch = encode(model, ["The cat sat on the mat.", "The cat."])
    target, scores = (
        target_of(model, batch, against="A kitten."),
        torch.randn(batch["input_ids"].shape),
    )
    keep = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    keep[:, :3] = True
    positive, _ = deletion_curves(model, batch, target, {"any": scores}, keep, fractions=(0, 1))
    alone = encode(model, "The cat.")
    only = {"input_ids": alone["input_ids"][:, :3]}
    other = target_of(model, only, against="A kitten.")
    assert float(positive.scores[1, 1]) == pytest.approx(
        float(other.score(model.module(**only), only)[0]), abs=1e-5
    )
    assert float(positive.scores[1, 0]) == pytest.approx(
        float(other.score(model.module(**alone), alone)[0]), abs=1e-5
    )


def test_inputs_that_come_out_alike_run_once():
    model = catalogue("minilm")
    batch = encode(model, "The cat sat on the mat.")
    target, scores = (
        target_of(model, batch, against="A kitten."),
        torch.randn(batch["input_ids"].shape),
    )
    seen = []
    hook = model.module.register_forward_pre_hook(
        lambda _m, _a, k: seen.append(tuple(k["input_ids"].shape)), with_kwargs=True
    )
    deletion_curves(
        model, batch, target, {"one": scores, "the same": scores}, fractions=(0, 0.5, 1)
    )
    hook.remove()
    # none left of 7 words, all, and 3 by each order
    assert sorted(seen) == [(1, 2), (1, 9), (2, 5)]


def test_one_token_and_bad_input():
    model = catalogue("minilm")
    batch = encode(model, "cat")
    target = target_of(model, batch, against="A kitten.")
    one = torch.zeros(1, 3)
    assert all(
        bool(torch.isfinite(d.auc).all())
        for d in deletion_curves(model, batch, target, {"any": one})
    )
    with pytest.raises(EigenlensError, match="no scores were given"):
        deletion_curves(model, batch, target, {})
    with pytest.raises(EigenlensError, match="fractions must be two or more that rise from 0"):
        deletion_curves(model, batch, target, {"any": one}, fractions=(0.5, 0.25))
    with pytest.raises(EigenlensError, match="the scores of 'any' are not all finite"):
        deletion_curves(model, batch, target, {"any": one * torch.nan})
    with pytest.raises(EigenlensError, match="there are 4 scores per input"):
        deletion_curves(model, batch, target, {"any": torch.zeros(1, 4)})
