"""Examples of every kind of model, with the tokens that their patterns belong to."""

import wave

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

import eigenlens as el
from eigenlens.data.token_text import token_texts
from eigenlens.models.facts import ModelFacts
from eigenlens.models.load import Model
from plans.examples.by_model import check_patterns, eager_of, matched
from tiny import VOCABULARY, of_catalogue, small_llama, tiny_bert, tiny_llama


def test_causal_models_with_grouped_queries(place, tmp_path):
    folder = tiny_llama(place / "llama")
    model = el.load(folder)
    study = el.study(model, place / "text.txt", max_length=20, max_inputs=60, rank=8)
    plan = el.plan(study, budget=0.4, model=model, max_inputs=6)
    examples = plan.examples
    assert not examples.true.triu(1).any()
    assert not torch.nan_to_num(examples.estimated).triu(1).any()
    # not for causal models
    unable = [c for c, (name, _) in enumerate(examples.candidates) if name == "cur"]
    assert (
        examples.estimated[:, :, unable].isnan().all() and np.isinf(examples.work[:, unable]).all()
    )
    assert examples.at(0, "cur", 0.25) is None and examples.best(0, 1.0) not in unable
    with pytest.raises(el.EigenlensError, match=r"cur at .* cannot serve this head"):
        examples.rows(candidate=unable[0])
    stack = examples.heads[0].stack
    found = matched(plan, model, tmp_path / "spool", stack=stack)
    check_patterns(plan, model, [batch for batch, _ in found], eager_of(el.load(folder), (stack,)))


def test_padding_has_no_pattern(place, tmp_path):
    folder, text = tiny_bert(place / "padded", seed=2), tmp_path / "short"
    text.mkdir()
    for i in range(30):
        (text / f"{i}.txt").write_text(
            " ".join(["one", "word", "after", "another"][j % 4] for j in range(4 + i % 7)) + f" {i}"
        )
    study = el.study(folder, text, max_length=16, max_inputs=30, padding=True, rank=4)
    examples = el.plan(study, budget=0.5, max_inputs=4).examples
    for i, tokens in enumerate(examples.tokens):
        real = [word != "[PAD]" for word in tokens["encoder"]]
        assert 0 < sum(real) < 16
        for pattern in (examples.true[i, 0], examples.patterns(i, 0)[1]):
            sums = pattern.float().sum(-1)
            torch.testing.assert_close(
                sums, torch.tensor(real, dtype=torch.float), atol=5e-3, rtol=0
            )
            assert not pattern[:, ~torch.tensor(real)].any()


def test_both_stacks_of_an_encoder_decoder_have_their_tokens(place, tmp_path):
    tokenizer = of_catalogue("minilm").tokenizer
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    module = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.5 if parameter.ndim == 2 else 1)
    model = el.load(module, tokenizer=tokenizer)
    study = el.study(
        model, place / "text.txt", max_length=16, max_inputs=40, rank=4, only=["rows", "moments"]
    )
    plan = el.plan(study, budget=0.4, model=model, max_inputs=5)
    assert {head.stack for head in plan.examples.heads} == {"encoder", "decoder"}
    first = matched(plan, model, tmp_path / "a")
    second = matched(plan, model, tmp_path / "b", "decoder_input_ids", "decoder")
    assert [b["input_ids"].tolist() for b, _ in first] == [
        b["input_ids"].tolist() for b, _ in second
    ]
    assert all(
        tokens["encoder"][0] == "[CLS]" and tokens["decoder"][0] == "[PAD]"
        for tokens in plan.examples.tokens
    )
    check_patterns(
        plan, model, [batch for batch, _ in first], eager_of(model, ("encoder", "decoder"))
    )


def test_pictures_are_named_by_their_patches(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(24):
        Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(
            tmp_path / f"{i}.png"
        )
    config = Dinov2WithRegistersConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
        num_register_tokens=2,
    )
    model = Dinov2WithRegistersModel(config).eval()
    study = el.study(model, tmp_path, max_inputs=24, rank=4)
    examples = el.plan(study, budget=0.5, model=model, max_inputs=4).examples
    patches = [f"{row},{column}" for row in range(4) for column in range(4)]
    assert all(
        tokens["encoder"] == ("cls", "register 0", "register 1", *patches)
        for tokens in examples.tokens
    )
    assert examples.true.shape == (3, 6, 19, 19)
    torch.testing.assert_close(
        examples.true.float().sum(-1), torch.ones(3, 6, 19), atol=5e-3, rtol=0
    )


def test_sound_is_named_by_its_frames(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(10):
        with wave.open(str(tmp_path / f"{i}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes((3000 * rng.normal(size=16_000)).astype("<i2").tobytes())
    small = {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    }
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = WhisperConfig(
        vocab_size=99,
        num_mel_bins=8,
        d_model=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=60,
        max_target_positions=32,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **small,
        **special,
    )
    model = el.load(WhisperForConditionalGeneration(config).eval())
    # 30 s in 120 frames, 60 behind the convolutions
    model.processor = WhisperFeatureExtractor(feature_size=8, hop_length=4000)
    study = el.study(
        model, tmp_path, max_length=12, max_inputs=10, rank=4, only=["rows", "moments"]
    )
    examples = el.plan(
        study, budget=0.5, model=model, max_inputs=2, estimators=["joint", "adaptive"]
    ).examples
    n = examples.true.shape[-1]
    assert n == min(site.queries for site in study.sites.values() if site.kind == "self") == 12
    for tokens in examples.tokens:
        assert tokens["encoder"] == tuple(f"frame {i}" for i in range(12))
        assert tokens["decoder"][0] == "3" and all(
            0 <= int(word) < 99 for word in tokens["decoder"]
        )
    assert {head.stack for head in examples.heads} == {"encoder", "decoder"}


def test_without_a_tokenizer_tokens_are_ids():
    ids = np.random.default_rng(0).integers(0, 50, (60, 16))
    model = small_llama()
    examples = el.plan(
        el.study(model, ids, max_inputs=60, max_length=16),
        budget=0.5,
        model=model,
        data=ids,
        max_inputs=6,
    ).examples
    rows = {tuple(map(str, row)) for row in ids.tolist()}
    assert all(set(tokens.values()) <= rows for tokens in examples.tokens)


class Odd:
    """A tokenizer with an empty token, a part of a character, and ids that are no tokens."""

    def decode(self, ids):
        return {0: "", 1: "\ufffd", 2: " word", 3: "a\ufffd"}.get(ids[0], "")

    def convert_ids_to_tokens(self, ids):
        return [{0: "<s>", 1: "<0xE2>", 3: "aÃ"}.get(i) for i in ids]


@pytest.mark.parametrize(
    ("batch", "stack", "length", "expected"),
    [
        (
            {"input_ids": torch.tensor([[0, 1, 2, 3, 9]])},
            "self",
            5,
            ["<s>", "<0xE2>", " word", "aÃ", "9"],
        ),
        ({"input_ids": torch.tensor([[2, 2, 2, 2]])}, "decoder", 4, [" word"] * 4),
        ({"input_ids": torch.tensor([[2, 2, 2, 2]])}, "pooled", 2, ["position 0", "position 1"]),
        ({"input_features": torch.zeros(1, 8, 6)}, "encoder", 3, ["frame 0", "frame 1", "frame 2"]),
        (
            {"input_features": torch.zeros(1, 8, 6), "decoder_input_ids": torch.tensor([[0, 2]])},
            "decoder",
            2,
            ["<s>", " word"],
        ),
        ({"pixel_values": torch.zeros(1, 3, 32, 16)}, "encoder", 3, ["cls", "0,0", "1,0"]),
        ({"pixel_values": torch.zeros(1, 3, 32, 16)}, "encoder", 2, ["0,0", "1,0"]),
        ({"pixel_values": torch.zeros(1, 3, 32, 16)}, "merged", 1, ["position 0"]),
    ],
)
def test_what_tokens_are_called(batch, stack, length, expected):
    model = Model(ModelFacts("odd", "encoder"), torch.nn.Identity(), Odd())
    assert token_texts(model, batch, stack, length) == [expected]
