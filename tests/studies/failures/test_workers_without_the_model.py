"""Workers that cannot have the model of a study end it with one sentence that says why."""

import pytest
import torch
from transformers import BertConfig, BertModel

from eigenlens import EigenlensError, study
from eigenlens.run.cluster import Dask
from studies.failures.cases import FINE
from tiny import tiny_bert


def test_workers_that_do_not_find_the_model_say_so(place, of_size, monkeypatch, tmp_path):
    folder = tiny_bert(tmp_path / "model")

    def gone(self, *args, real=Dask.fold, **more):
        folder.rename(tmp_path / "elsewhere")
        return real(self, *args, **more)

    monkeypatch.setattr(Dask, "fold", gone)
    with pytest.raises(EigenlensError, match=r"shard \d+ \(.*\) failed: .*model"):
        study(folder, place / "a.txt", tmp_path / "s", **FINE, max_inputs=20, engine=of_size(2))


def test_workers_that_find_other_weights_say_so(place, of_size, monkeypatch, tmp_path):
    folder = tiny_bert(tmp_path / "model")

    def changed(self, *args, real=Dask.fold, **more):
        tiny_bert(folder, seed=1)
        return real(self, *args, **more)

    monkeypatch.setattr(Dask, "fold", changed)
    with pytest.raises(
        EigenlensError, match="has other weights on this worker than where the run began"
    ):
        study(folder, place / "a.txt", tmp_path / "s", **FINE, max_inputs=20, engine=of_size(2))


def test_a_module_in_hand_needs_this_process(place, of_size, tmp_path):
    model = BertModel(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
        )
    )
    with pytest.raises(EigenlensError, match=r"was never saved.*save it to a folder"):
        study(
            model,
            torch.randint(50, (20, 8)),
            tmp_path / "s",
            max_length=8,
            max_inputs=20,
            engine=of_size(2),
        )
    assert not (tmp_path / "s").exists()
