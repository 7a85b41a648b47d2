"""Data that no inputs can be made of is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest

from data.prepared import make
from eigenlens.errors import EigenlensError


def broken_file(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((40, 12)), r"holds float64 of shape \(40, 12\); token ids must be integers"),
        (np.zeros((4, 4, 12), int), "one or two dimensions"),
        (np.zeros((40, 13), int), "have 13 tokens, but inputs of 12"),
        (np.full((40, 12), 30_522), "30522, which is outside the vocabulary of 30522 tokens"),
        (np.array([[5, -7] * 6] * 40), "-7, but token ids must be 0 or more"),
        (np.array([{"a": 1}, None], object), "not an array of token ids"),
        (np.zeros((2, 12), int), "too short"),
        (np.zeros(0, int), "empty"),
        (b"", "not an array of token ids"),
        (b"these are words", "not an array of token ids"),
        (b"PK\x03\x04 an archive", "not an array of token ids"),
    ],
    ids=[
        "floats",
        "3-D",
        "width",
        "too large",
        "negative",
        "pickle",
        "few",
        "none",
        "no bytes",
        "text",
        "zip",
    ],
)
def test_what_is_no_array_of_token_ids_is_refused(minilm, tmp_path, content, message):
    path = broken_file(tmp_path / "ids.npy", content)
    with pytest.raises(EigenlensError, match=message):
        make(minilm, path, tmp_path / "w", max_length=12, max_inputs=40)


def test_an_archive_of_arrays_is_no_array(minilm, tmp_path):
    np.savez(tmp_path / "a.npz", ids=np.zeros((40, 12), int))
    (tmp_path / "a.npz").rename(tmp_path / "ids.npy")
    with pytest.raises(EigenlensError, match="not an array of token ids"):
        make(minilm, tmp_path / "ids.npy", tmp_path / "w", max_length=12, max_inputs=40)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "the text is empty"),
        (" \n\n ", {}, "the text is empty"),
        ("a few words only", {}, "too short: with inputs of 128 tokens it gives 0 inputs to fit"),
        ("words " * 9999, {"max_length": 513}, "513 tokens is over the maximum of minilm, 512"),
        ("words " * 9999, {"max_length": 2}, "no room besides the 2 special tokens"),
        ("words " * 9999, {"max_length": 1}, "at least 2 tokens"),
        ("words " * 9999, {"max_inputs": 2}, "2 inputs are too few"),
        ("words " * 9999, {"held_out": 0.0}, "between 0 and 1, not 0"),
        ("words " * 9999, {"held_out": 1.0}, "between 0 and 1, not 1"),
        ("words " * 9999, {"held_out": math.nan}, "between 0 and 1, not nan"),
    ],
)
def test_what_gives_no_inputs_is_refused(minilm, tmp_path, content, options, message):
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(EigenlensError, match=message):
        make(minilm, path, tmp_path / "w", **options)


def test_text_for_a_model_without_a_tokenizer_is_refused(minilm, marked, tmp_path):
    with pytest.raises(EigenlensError, match="no tokenizer"):
        make(replace(minilm, tokenizer=None), marked, tmp_path / "w")
    with pytest.raises(EigenlensError, match="cannot be mixed"):
        make(minilm, [marked, "ids.npy"], tmp_path / "w")
