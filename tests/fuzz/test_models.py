"""A model's folder is not trusted.

Its config, weights, index and tokenizer are refused or read, and none of its code runs.
"""

import json
import pickle
import shutil

import pytest

import eigenlens as el
from eigenlens.errors import EigenlensError

from .cases import run_case
from .models import PLANTED
from .world import world

BLOCK = 20


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(world() / "bert", tmp_path / "model")
    return tmp_path / "model"


def change(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize("block", range(3))
def test_damaged_folders(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_case("model", seed)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("hidden_size", 10**9),
        ("vocab_size", 10**12),
        ("num_labels", 10**10),
        ("intermediate_size", 1e12),
        ("type_vocab_size", 2 * 10**6),
        ("architectures", 5),
        ("architectures", [[]]),
        ("_attn_implementation", "someone/kernel"),
    ],
)
def test_a_config_that_asks_for_too_much_is_refused_before_memory_is(folder, key, value):
    change(folder, **{key: value})
    with pytest.raises(EigenlensError):
        el.load(folder)


def test_sizes_far_beyond_the_files_are_told_with_both_figures(folder):
    change(folder, hidden_size=1 << 16, vocab_size=1 << 20)
    with pytest.raises(
        EigenlensError, match=r"describes [\d,]+ numbers, but its files hold [\d,]+ bytes"
    ):
        el.load(folder)


@pytest.mark.parametrize("place", ["../away.safetensors", "/away.safetensors", "", None])
def test_weights_are_read_from_the_folder_alone(folder, place):
    (folder / "model.safetensors").rename(folder.parent / "away.safetensors")
    shutil.copy(folder.parent / "away.safetensors", folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": place}}))
    with pytest.raises(EigenlensError, match="which is not a file of that folder"):
        el.load(folder)


def test_code_of_the_folder_is_not_run(folder):
    (folder / "evil.py").write_text(PLANTED)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["evil.T", None]}, "tokenizer_class": "T"})
    )
    change(folder, auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"}, model_type="evil")
    with pytest.raises(EigenlensError):
        el.load(folder)
    assert not (folder / "ran").exists()


def test_pickled_weights_are_tensors_or_nothing(folder):
    class Evil:
        def __reduce__(self):
            return (open, (str(folder / "ran"), "w"))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Evil()}))
    with pytest.raises(EigenlensError):
        el.load(folder)
    assert not (folder / "ran").exists()


def test_an_adapter_is_not_followed_to_another_place(folder):
    (folder / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "/somewhere"})
    )
    with pytest.raises(EigenlensError, match="adapter"):
        el.load(folder)
