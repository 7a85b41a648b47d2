"""A folder without a vocabulary has no tokenizer, and what is missing is said."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from eigenlens import EigenlensError, explain, load, study
from eigenlens.models import catalogue
from eigenlens.models.tokenizers import tokenizer_of
from tiny import SMALL, small_gpt2, small_t5, tiny_bert

BARE = {
    "bert": lambda: BertModel(BertConfig(**SMALL)),
    "albert": lambda: AlbertModel(AlbertConfig(**SMALL, embedding_size=16)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "gpt2": small_gpt2,
    "t5": small_t5,
}


@pytest.mark.parametrize("family", BARE)
def test_text_for_a_folder_without_a_vocabulary_says_which_files_are_missing(family, tmp_path):
    BARE[family]().save_pretrained(tmp_path / "bare")
    (tmp_path / "a.txt").write_text("Some words that are there.\n\n" * 500)
    message = (
        r"bare has no tokenizer \(.*bare has none of the files tokenizer\.json, .*vocab\.txt\)"
    )
    with pytest.raises(EigenlensError, match=message):
        study(tmp_path / "bare", tmp_path / "a.txt", max_inputs=8, max_length=8)
    with pytest.raises(EigenlensError, match=message):
        explain(tmp_path / "bare", "Some words.")
    model = load(tmp_path / "bare")
    assert model.tokenizer is None
    ids = torch.randint(0, 40, (9, 8))
    if family != "t5":
        assert (
            study(tmp_path / "bare", ids, max_inputs=9, max_length=8, only=["rows"]).facts.inputs
            == 9
        )


def test_a_file_that_holds_no_vocabulary_is_named(tmp_path):
    folder = tiny_bert(tmp_path / "broken")
    (folder / "tokenizer.json").write_text("{}")
    made, why = tokenizer_of(folder)
    assert made is None and "tokenizer.json cannot be used: " in why


def test_a_sentencepiece_file_without_its_library_names_the_extra(tmp_path, monkeypatch):
    BARE["llama"]().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"pieces")
    monkeypatch.setattr("eigenlens.extras.find_spec", lambda name: None)
    made, why = tokenizer_of(Path(tmp_path))
    assert made is None and why.endswith(
        "needs sentencepiece and protobuf; install them with: pip install 'eigenlens[catalogue]'"
    )


def test_tokenizers_that_need_no_file_are_tokenizers(tmp_path):
    """Bytes are their own vocabulary."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer"})
    )
    made, why = tokenizer_of(tmp_path)
    assert made("ab")["input_ids"][:2] == [ord("a") + 3, ord("b") + 3] and why == ""
    assert tokenizer_of(catalogue.model_folder("minilm"))[0]("a cat")["input_ids"][0] == 101


def test_sound_without_a_feature_extractor_says_so(tmp_path):
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    }
    WhisperForConditionalGeneration(
        WhisperConfig(vocab_size=60, pad_token_id=0, **sizes)
    ).save_pretrained(tmp_path / "w")
    with pytest.raises(
        EigenlensError,
        match=r"w has no feature extractor for sound \(its folder has no preprocessor_config\.json",
    ):
        study(tmp_path / "w", tmp_path / "a.wav", max_inputs=4)
