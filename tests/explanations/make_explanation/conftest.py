"""An explanation of a text by minilm, and small models of other kinds."""

import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

import eigenlens as el
from eigenlens.models import catalogue
from explanations.make_explanation.text import TEXT
from tiny import of_catalogue


@pytest.fixture(scope="package")
def mini():
    return of_catalogue("minilm")


@pytest.fixture(scope="package")
def found(mini):
    return el.explain(mini, TEXT, against="Paris")


@pytest.fixture(scope="package")
def llama(llama):
    return el.load(llama)


@pytest.fixture(scope="package")
def classifier():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30_522,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        id2label={0: "bad", 1: "good"},
        label2id={"bad": 0, "good": 1},
        initializer_range=0.3,
    )
    return BertForSequenceClassification(config).eval()


@pytest.fixture(scope="package")
def tokenizer():
    return AutoTokenizer.from_pretrained(catalogue.model_folder("minilm"))
