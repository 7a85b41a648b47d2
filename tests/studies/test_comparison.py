"""Studies side by side.

Their layers in order, told apart by name, and only what can be compared is.
"""

from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel

from eigenlens import EigenlensError, compare, study
from eigenlens.captures import Head, Site
from eigenlens.spectra.bases import Scope
from eigenlens.studies.make_comparison import labels_of
from eigenlens.studies.result import Study

SIZE = {"max_length": 8, "max_inputs": 12}


@pytest.fixture(scope="module")
def ids():
    return torch.randint(5, 50, (12, 8), generator=torch.Generator().manual_seed(0))


def bert(layers):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=layers,
        num_attention_heads=1,
        intermediate_size=8,
    )
    return BertModel(config, add_pooling_layer=False)


def test_layers_stand_in_the_order_the_model_runs_them(ids, tmp_path):
    """Also the tenth behind the second, from a study that was written and opened again."""
    study(bert(12), ids, tmp_path / "s", only=["rows"], **SIZE)
    again = Study.open(tmp_path / "s")
    assert again.eigenspaces(level="layer", rank=2).at == tuple(
        Site("encoder", i) for i in range(12)
    )
    assert again.eigenspaces(level="stack", rank=2).at == ("encoder",)
    assert again.overlap(rank=2).rows_ == tuple(Head("encoder", i, 0) for i in range(12))
    assert again.overlap(rank=2).row_labels == [f"L{i}H0" for i in range(12)]
    mine = again.row_basis(Scope("head", "encoder", 10)).vectors[0, :, :2]
    assert torch.equal(again.eigenspaces(level="head", rank=2).vectors[10], mine)


def test_scores_and_patterns_are_not_compared(ids):
    model = bert(2)
    scores, patterns = (
        study(model, ids, only=["rows"], **SIZE),
        study(model, ids, only=["rows"], of="pattern", **SIZE),
    )
    with pytest.raises(
        EigenlensError, match=r"of the same thing.* is of scores, .* is of patterns"
    ):
        compare(scores, patterns)


def test_names_that_repeat_take_as_much_of_their_folders_as_it_needs(tmp_path):
    def named(name, folder):
        return SimpleNamespace(name=name, folder=tmp_path / folder)

    assert labels_of([named("a", "x/study"), named("b", "x/study")]) == ["a", "b"]
    assert labels_of([named("a", "x/one"), named("a", "x/two")]) == ["a (one)", "a (two)"]
    assert labels_of([named("a", "x/study"), named("a", "y/study")]) == [
        "a (x/study)",
        "a (y/study)",
    ]
