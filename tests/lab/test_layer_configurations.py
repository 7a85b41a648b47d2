"""A mechanism for every layer and head, and gates, as a configuration names them."""

import json
from dataclasses import asdict

import pytest
import torch

from eigenlens.attention import mechanisms
from eigenlens.attention.head_mix import HeadMix
from eigenlens.attention.softmax import Softmax
from eigenlens.errors import EigenlensError
from eigenlens.lab import Config, Transformer
from eigenlens.lab.layers import gate_of, layers_of
from lab.moved import IDS, SHAPE


def names(model):
    return [mechanism.name for mechanism in model.mechanisms]


def test_a_name_is_for_all_layers_and_letters_are_repeated():
    assert layers_of("full", 2, 4) == [(("softmax", 4),)] * 2
    assert layers_of("F", 3, 1) == [(("softmax", 1),)] * 3
    assert names(Transformer(Config(**{**SHAPE, "layers": 4}, mechanism="FF"))) == ["softmax"] * 4
    letters = {
        kind.letter: name
        for name, kind in mechanisms().items()
        if kind.letter and "causal" in kind.directions
    }
    text = "".join(letters)
    model = Transformer(
        Config(**{**SHAPE, "layers": 2 * len(text), "causal": True}, mechanism=text)
    )
    assert names(model) == 2 * list(letters.values())


def test_every_layer_can_have_a_list_of_its_own_and_settings_go_by_name():
    config = Config(
        **SHAPE,
        causal=True,
        mechanism=["full", [("full", 1), ("local", 1)]],
        mechanism_settings={"local": {"window": 3}},
    )
    model = Transformer(config)
    assert isinstance(model.mechanisms[0], Softmax) and isinstance(model.mechanisms[1], HeadMix)
    _, second = model.patterns(IDS)
    far = torch.arange(12)[:, None] - torch.arange(12) >= 3
    assert (
        float(second[:, 1][:, far].detach().abs().max()) == 0
        and float(second[:, 0][:, far].detach().max()) > 0
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mechanism": "hardmax"}, "no mechanism 'hardmax'"),
        ({"mechanism": "FFF"}, "'FFF' of 3 layers does not divide 2 layers"),
        ({"mechanism": ["softmax"]}, "1 mechanisms are listed for 2 layers"),
        ({"mechanism": [("softmax", 1)]}, "given for 1 heads, and a layer has 2"),
        ({"mechanism": [("softmax", 3), ("softmax", -1)]}, "at least one head"),
        ({"mechanism": ["softmax", 3]}, "a name or a list of"),
        ({"mechanism": 3}, "mechanism must be a text or a list, not 3"),
        ({"mechanism_settings": {"softmax": {"heat": 2}}}, "no setting 'heat' of softmax"),
        ({"mechanism_settings": {"hardmax": {}}}, "no mechanism 'hardmax'"),
        ({"mechanism_settings": {"softmax": 2}}, "mechanism_settings must be a table"),
        (
            {"mechanism_settings": {"local": {"windw": 2}}},
            "no setting 'windw' of local; it has window",
        ),
        (
            {"mechanism": "local", "mechanism_settings": {"local": {"window": "a"}}},
            "window of local must be a whole number, not 'a'",
        ),
        (
            {"mechanism": "local", "mechanism_settings": {"local": {"window": 0}}},
            "window must be at least 1 token",
        ),
        ({"width": "a"}, "width must be a whole number, not 'a'"),
        ({"causal": "no"}, "causal must be true or false, not 'no'"),
        ({"mechanism_settings": None}, "mechanism_settings must be a table, not None"),
        ({"gate": 3}, "gate must be a text, not 3"),
        ({"gate": "G1-bias=nan"}, "bias of a gate must be a finite number"),
        ({"size": -1.0}, "size is a number above 0"),
        ({"size": float("nan")}, "size is a number above 0"),
        (
            {"mechanism": "linformer", "causal": True},
            "linformer runs both ways, and the model causal",
        ),
        ({"norm_position": "middle"}, "norm_position must be 'pre' or 'post', not 'middle'"),
        ({"activation": "tanh"}, "activation must be 'gelu' or 'relu'"),
        ({"fusion": "mean"}, "no fusion 'mean'"),
        ({"rank": 0}, "rank is at least 1, not 0"),
        ({"gate": "G7"}, "no gate 'G7'"),
        ({"gate": "G1-hard"}, "no option 'hard' of a gate"),
        ({"gate": "G1-bias=x"}, "is a number, not 'x'"),
        ({"gate": "G5-head"}, "no heads"),
        ({"heads": 3}, "give rank and value_width"),
    ],
)
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(EigenlensError, match=message):
        Config(**{**SHAPE, **wrong})


def test_gates_are_read_from_their_names():
    assert vars(gate_of("G1")) == {
        "position": "G1",
        "per": "element",
        "shared": False,
        "form": "sigmoid",
        "bias": 0.0,
    }
    assert vars(gate_of("G3-head-silu")) == {
        "position": "G3",
        "per": "head",
        "shared": False,
        "form": "silu",
        "bias": 0.0,
    }
    found = gate_of("G2-shared-bias=-1.5")
    assert found.position == "G2" and found.shared and found.bias == -1.5


def test_a_configuration_goes_through_json():
    config = Config(
        **SHAPE,
        mechanism=["full", [("full", 1), ("full", 1)]],
        mechanism_settings={"full": {}},
        gate="G1",
        fusion="max",
    )
    again = Config(**json.loads(json.dumps(asdict(config))))
    assert again == config and hash(again) == hash(config)
