"""The default model, and a text whose tokens tell their documents."""

import json

import numpy as np
import pytest
from transformers import AutoTokenizer

from eigenlens.models import catalogue
from eigenlens.models.load import load


@pytest.fixture(scope="session")
def minilm():
    return load("minilm")


@pytest.fixture(scope="session")
def words():
    """Words that are one token each, so that a token says which word it was."""
    tokenizer = AutoTokenizer.from_pretrained(catalogue.model_folder("minilm"))
    ids = [
        i
        for word, i in sorted(tokenizer.get_vocab().items())
        if word.isascii() and word.isalpha() and len(word) > 3
    ]
    return {i: tokenizer.convert_ids_to_tokens(i) for i in ids[:500]}


@pytest.fixture
def marked(tmp_path, words):
    """Documents of one word each, over and over: token ids tell which documents an input was made
    of.
    """
    sizes = np.random.default_rng(0).integers(5, 120, len(words))
    path = tmp_path / "marked.jsonl"
    path.write_text(
        "\n".join(json.dumps({"text": f"{w} " * int(n)}) for w, n in zip(words.values(), sizes))
    )
    return str(path)
