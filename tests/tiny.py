"""A model small enough to be studied in a blink.

Two layers at random init, with a real tokenizer.
"""

import json
import shutil
from itertools import islice

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from eigenlens import EigenlensError, load
from eigenlens.data.datasets import text
from eigenlens.models import catalogue
from eigenlens.models.catalogue import DEFAULT_MODEL

VOCABULARY = 30_522


def tiny_bert(folder, seed=0):
    """Save a BERT of 2 layers × 2 heads with minilm's tokenizer, at most 64 tokens.

    Returns its folder.
    """
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(catalogue.model_folder("minilm") / name, folder)
    return folder


def tiny_llama(folder, seed=0):
    """Save a Llama of 2 layers × 4 heads (2 for keys) with minilm's tokenizer, at most 2,048
    tokens; returns its folder.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=2048,
        initializer_range=0.2,
        bos_token_id=101,
        eos_token_id=102,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    shutil.copy(catalogue.model_folder("minilm") / "tokenizer.json", folder)
    settings = json.loads((catalogue.model_folder("minilm") / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "model_max_length": 2048})
    )
    return folder


def small_llama():
    """A Llama of 2 layers × 4 heads (2 for keys) over 50 tokens, in memory."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def small_bert():
    """A BERT of 2 layers × 4 heads over 50 tokens, in memory."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
    )
    return BertModel(config, add_pooling_layer=False).eval()


SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
"""Sizes of a small model, by the names that most configurations have for them."""


def small_gpt2():
    """A GPT-2 of 2 layers × 4 heads over 50 tokens, in memory."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4))


def small_t5(**settings):
    """A T5 of one layer × 2 heads per stack over 50 tokens, in memory; `settings` of its
    configuration come first.
    """
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, **settings}
    return T5ForConditionalGeneration(T5Config(vocab_size=50, decoder_start_token_id=0, **sizes))


def token_ids(inputs, length):
    """Ids for the small models: (inputs, length)."""
    return np.random.default_rng(0).integers(0, 50, (inputs, length))


def of_catalogue(name):
    """A model of the catalogue.

    One that cannot be had is skipped with the reason, but the default must be there.
    """
    try:
        return load(name)
    except EigenlensError as error:
        if name == DEFAULT_MODEL:
            raise
        pytest.skip(str(error))


def some_text(path, documents=12):
    """A file with the first topics of the Python documentation."""
    path.write_text("\n\n".join(islice(text("python-docs"), documents)), encoding="utf-8")
    return path
