"""One clear sentence for every target that does not exist."""

import pytest
import torch
import transformers as tf
from torch import nn

from captures.families import TEXT
from eigenlens import EigenlensError, load
from eigenlens.data.encode import encode
from eigenlens.explanations import target_of
from explanations.loaded import catalogue
from explanations.targets import classifier

WRONG = [
    (
        "stories15m",
        {"target": 10**6},
        "there is no token 1000000; stories15m has 32,000 tokens, counted from 0",
    ),
    ("stories15m", {"target": -1}, "there is no token -1"),
    (
        "stories15m",
        {"target": "a little girl"},
        "'a little girl' is not one token of stories15m but 3",
    ),
    ("stories15m", {"target": True}, "the target must be a token, a class or a label, not True"),
    ("stories15m", {"target": ""}, "the target '' is no token"),
    (
        "stories15m",
        {"against": "another text"},
        "no similarity to another input to explain: stories15m has a head",
    ),
    ("minilm", {}, "minilm has no head: give a second text to compare with"),
    ("minilm", {"target": 3}, "minilm has no head, so it has no target 3"),
    ("minilm", {"target": "output", "against": "another"}, "not both"),
    ("minilm", {"against": ""}, "the text is empty"),
    ("minilm", {"against": ["one", "two", "three"]}, "3 inputs to compare with were given for 1"),
    ("distilbert-gec", {"target": (99, 1)}, "there is no token 99; the shortest input has"),
    (
        "distilbert-gec",
        {"target": (1, 999)},
        "there is no class 999; distilbert-gec has 213 classes, counted from 0",
    ),
    (
        "distilbert-gec",
        {"target": "1:NOUN"},
        "distilbert-gec has no class 'NOUN'; it has .KEEP, .DELETE",
    ),
    ("distilbert-gec", {"target": 5}, "gives every token a label: the target is .position, class."),
    (
        "distilbert-gec",
        {"target": "--1:x"},
        "the target is .position, class. or 'position:class', not '--1:x'",
    ),
    ("distilbert-gec", {"target": "²:x"}, "the target is .position, class."),
    ("distilbert-gec", {"target": "2:²"}, "distilbert-gec has no class '²'"),
    ("distilbert-gec", {"target": "2:" + "9" * 5000}, "distilbert-gec has no class '999"),
    ("distilbert-gec", {"target": ("a", 1)}, "there is no token 'a'"),
    ("stories15m", {"target": "id:99999"}, "there is no token 99999"),
    ("stories15m", {"target": "1234"}, "give one of them, or an id as id:1234"),
    ("stories15m", {"against": "another text"}, "leave out the other input"),
    ("stories15m", {"target": "caf\udce9"}, "the target is not valid UTF-8: character 3"),
    ("minilm", {"against": "caf\udce9"}, "the text to compare with is not valid UTF-8"),
]


@pytest.mark.parametrize(("name", "settings", "message"), WRONG)
def test_a_target_that_does_not_exist(name, settings, message):
    model = catalogue(name)
    with pytest.raises(EigenlensError, match=message) as raised:
        target_of(model, encode(model, "Once upon a time"), **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [(7, "there is no class 7"), ("ugly", "no class 'ugly'; it has bad, fair, good")],
)
def test_a_class_that_does_not_exist(target, message):
    with pytest.raises(EigenlensError, match=message):
        target_of(classifier(), {"input_ids": torch.randint(3, 99, (1, 6))}, target=target)


def test_a_plain_module_must_be_told():
    model = load(nn.Linear(4, 3))
    with pytest.raises(EigenlensError, match='the target "output"'):
        target_of(model, {"x": torch.randn(2, 5, 4)})
    assert target_of(model, {"x": torch.randn(2, 5, 4)}, target=(-1, None)).position.tolist() == [
        4,
        4,
    ]


HEADS = {
    "ElectraForPreTraining": lambda: tf.ElectraForPreTraining(
        tf.ElectraConfig(**TEXT, embedding_size=16)
    ),
    "BertForQuestionAnswering": lambda: tf.BertForQuestionAnswering(tf.BertConfig(**TEXT)),
    "BertForPreTraining": lambda: tf.BertForPreTraining(tf.BertConfig(**TEXT)),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("tokens", [2, 5])
@pytest.mark.parametrize("settings", [{}, {"target": 0}, {"target": "output"}, {"against": "x"}])
def test_heads_that_are_not_understood(head, tokens, settings):
    with pytest.raises(
        EigenlensError, match=f"has a head that is not understood .{head} gives .*logits"
    ):
        target_of(load(HEADS[head]()), {"input_ids": torch.randint(3, 99, (1, tokens))}, **settings)
