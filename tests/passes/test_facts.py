"""What results say of their model and data: written and read back without loss."""

import json
from dataclasses import replace

import pytest

from eigenlens import load
from eigenlens._version import __version__
from eigenlens.data.facts import DataFacts
from eigenlens.data.inputs import Request, prepare
from eigenlens.models.facts import ModelFacts
from eigenlens.passes.facts import Facts

KEYS = ("model", "data", "length", "inputs", "notes", "versions", "seconds", "created")


@pytest.fixture
def facts(bert, text, tmp_path):
    model = load(bert)
    inputs = prepare(model, Request((str(text),), 16, 12), tmp_path)
    return Facts.now(
        model.facts, inputs.facts, length=16, inputs=12, notes=["one", "two"], seconds=1.5
    )


def test_facts_come_back_from_json(facts):
    assert Facts.from_record(json.loads(json.dumps(facts.record(*KEYS)))) == facts
    assert facts.versions["eigenlens"] == __version__ == facts.record("eigenlens")["eigenlens"]


def test_only_the_keys_that_are_asked_for_are_written_in_their_order(facts):
    assert list(facts.record("created", "model", "length")) == ["created", "model", "length"]
    assert facts.record("model", "data", by_name=True) == {"model": "bert", "data": "text.txt"}
    kept = facts.record("model", model=("fingerprint", "note", "name"))["model"]
    assert kept == {"fingerprint": facts.model.fingerprint, "note": None, "name": "bert"}


def test_a_model_keeps_what_is_known_of_it(bert):
    record = load(bert).facts.record()
    expected = ["name", "kind", "source", "architecture", "parameters", "fingerprint", "place"]
    assert list(record) == expected and record["place"] == str(bert)
    module = load(load(bert).module).facts
    assert (module.source, module.place, module.fingerprint) == (
        "module",
        None,
        record["fingerprint"],
    )
    assert ModelFacts.from_record("bert") == ModelFacts("bert")


def test_data_keeps_what_is_known_of_it(facts):
    record = facts.data.record()
    assert record["tokens"] == 12 * 16 and not {"image_size", "sampling_rate"} & record.keys()
    assert record["inputs_fit"] + record["inputs_held_out"] == 12 and record["padded"] is False
    assert replace(facts.data, image_size=224).record()["image_size"] == 224
    assert DataFacts("a, text", is_input=True).record() == "a, text"
    assert DataFacts.from_record("a, text", is_input=True).few_names == "a, text"
