"""Token ids as arrays.

The length is the array's, and what is said of them names the array and nothing else.
"""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

import eigenlens as el
from eigenlens import EigenlensError
from eigenlens.data.arrays import ArrayName, in_memory
from eigenlens.data.inputs import Request
from tiny import small_bert, small_llama, small_t5, token_ids

IDS = token_ids(60, 20)


class Plain(nn.Module):
    """A module without a config."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, batch_first=True), 2, enable_nested_tensor=False
        )

    def forward(self, input_ids):
        return self.layers(self.embed(input_ids))


@pytest.fixture(scope="module")
def bert():
    return small_bert()


@pytest.fixture(scope="module")
def made(bert):
    return el.study(bert, IDS, only="rows,moments")


@pytest.mark.parametrize("form", [lambda a: a, torch.from_numpy, lambda a: a.tolist(), list])
def test_the_length_of_a_study_is_that_of_the_rows(bert, form):
    found = el.study(bert, form(IDS), only="rows")
    assert found.length == 20 and found.facts.inputs == 60
    assert found.name == "BertModel on an array (60 × 20)"


def test_a_file_of_rows_has_its_own_length_too(bert, tmp_path):
    np.save(tmp_path / "ids.npy", IDS)
    assert el.study(bert, tmp_path / "ids.npy", only="rows").length == 20
    assert (
        el.collapse(bert, IDS, max_inputs=4, paths=0, bounds=0, variants="SAN").facts.length == 20
    )


def test_a_flat_array_is_cut_at_the_length(bert):
    assert el.study(bert, IDS.ravel(), max_length=10, only="rows").length == 10
    assert el.study(bert, np.tile(IDS.ravel(), 8), only="rows").length == 128


def test_a_study_of_an_array_keeps_no_temporary_file_in_its_facts(made, tmp_path):
    assert made.stored["options"]["request"]["data"] == ["an array (60 × 20)"]
    assert "/tmp" not in json.dumps(made.record()) and "array.npy" not in json.dumps(made.record())


def test_a_killed_study_of_an_array_goes_on(bert, tmp_path):
    """Also without a length, which the inputs that were kept then give."""
    whole = el.study(bert, IDS, tmp_path / "whole", only="rows")

    def stop(*args):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        el.study(bert, IDS, tmp_path / "killed", only="rows", progress=stop)
    assert (tmp_path / "killed" / "unfinished" / "request.json").is_file()
    resumed = el.study(bert, IDS, tmp_path / "killed", only="rows", resume=True)
    assert resumed.length == 20 and resumed.rows() == whole.rows()


def test_a_plan_of_a_study_of_an_array_asks_for_the_array(made, bert):
    with pytest.raises(EigenlensError) as raised:
        el.plan(made, budget=0.5, model=bert)
    assert (
        str(raised.value)
        == "the study was made from an array (60 × 20) in memory, which it does not keep; give the"
        " array again as the data"
    )


def test_the_array_of_the_study_is_known_again(made, bert):
    """A plan is then chosen on what the study held out, and an evaluation is of what neither has
    seen.
    """
    plan = el.plan(made, budget=0.5, model=bert, data=IDS, max_inputs=4)
    assert plan.stored["groups"] and all(group % 2 == 0 for group in plan.stored["groups"])
    measured = el.evaluate(bert, IDS, plan=plan, max_inputs=48)
    assert measured.facts.inputs < 60 * 0.2 and measured.notes == ()
    other = el.evaluate(bert, (IDS + 1) % 50, plan=plan, max_inputs=48)
    assert other.facts.inputs == 48 and other.notes == ()


SAID = {
    "(60, 20)": (
        lambda: IDS,
        {"max_length": 12},
        "the rows of an array (60 × 20) have 20 tokens, but inputs of 12 tokens are needed",
    ),
    "short": (
        lambda: IDS[:, :1],
        {},
        (
            "the rows of an array (60 × 1) have 1 token, which is too short: attention needs at"
            " least 2"
        ),
    ),
    "long": (
        lambda: np.zeros((9, 700), int),
        {},
        (
            "the rows of an array (9 × 700) have 700 tokens, more than the 512 that BertModel"
            " can read; cut them"
        ),
    ),
    "few": (
        lambda: IDS[:2],
        {},
        (
            "an array (2 × 20) is too short: with inputs of 20 tokens it gives 1 input to fit and 1"
            " to hold out from 2 documents, but at least 2 and 1 are needed; give more token ids"
        ),
    ),
    "none": (lambda: IDS[:0], {}, "an array (0 × 20) is empty"),
    "outside": (
        lambda: np.maximum(IDS, 49) + 40,
        {},
        "an array (60 × 20) has the token id 89, which is outside the vocabulary of 50 tokens",
    ),
    "negative": (
        lambda: IDS - 60,
        {},
        "an array (60 × 20) has the token id -60, but token ids must be 0 or more",
    ),
    "numbers": (
        lambda: IDS / 2,
        {},
        (
            "an array (60 × 20) holds float64 of shape (60, 20); token ids must be integers in"
            " one or two dimensions"
        ),
    ),
    "ragged": (
        lambda: [[1, 2], [3]],
        {},
        ("the rows of token ids have different lengths; cut or pad them to one length"),
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_what_is_wrong_with_an_array_is_said_of_the_array(bert, case):
    array, options, message = SAID[case]
    with pytest.raises(EigenlensError) as raised:
        el.study(bert, array(), **options)
    text = str(raised.value)
    assert text == message
    assert not re.search(r"/tmp|\.npy|None|128|--", text)


def test_a_module_without_a_config_has_no_vocabulary_to_be_outside_of():
    with pytest.raises(EigenlensError) as raised:
        el.study(Plain(), IDS - 60)
    assert str(raised.value).endswith("but token ids must be 0 or more")
    assert el.study(Plain(), IDS, only="rows").length == 20


def test_rows_of_an_encoder_decoder_hold_both_texts():
    model = small_t5().eval()
    assert el.study(model, IDS[:, :19], only="rows").length == 10
    with pytest.raises(
        EigenlensError,
        match=r"have 20 tokens; T5ForConditionalGeneration reads .* rows of 2n − 1, an odd number",
    ):
        el.study(model, IDS)


def test_rows_of_two_files_have_one_length(tmp_path):
    for name, width in (("a", 20), ("b", 12)):
        np.save(tmp_path / f"{name}.npy", IDS[:, :width])
    with pytest.raises(
        EigenlensError, match=r"different lengths: .*a\.npy has 20, .*b\.npy has 12"
    ):
        el.study(small_llama(), [tmp_path / "a.npy", tmp_path / "b.npy"])


def test_the_name_of_an_array_is_a_text_that_travels(tmp_path):
    name = ArrayName.of(IDS, tmp_path)
    copied = asdict(Request((name,)))["data"][0]
    assert copied.path == name.path and json.dumps([copied]) == json.dumps(["an array (60 × 20)"])
    assert (
        not in_memory(name)
        and in_memory(str(json.loads(json.dumps(name))))
        and not in_memory("an array of words.txt")
    )
