"""The rank-collapse reproduction.

Its miniature runs, its numbers are plain definitions, its verdicts follow from them.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch

from eigenlens import EigenlensError
from eigenlens.anatomy import freeze
from eigenlens.collapses import VARIANTS, ablate
from eigenlens.papers import rank_collapse
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.rank_collapse import models as collapse_models
from eigenlens.papers.rank_collapse import random_starts
from eigenlens.papers.rank_collapse.claims import CURVES
from eigenlens.papers.rank_collapse.coverage import stack_facts
from eigenlens.papers.rank_collapse.pictures import charts as collapse_charts
from eigenlens.papers.rank_collapse.training_claims import TASKS
from printed import check_printed


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return rank_collapse.paper("quick", tmp_path_factory.mktemp("collapse") / "run")


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done, capsys)


def test_the_miniature_measures_every_claim(done):
    names = [claim.claim for claim in done.claims]
    assert len(names) == len(set(names))
    assert sum("random start" in name for name in names) >= len(CURVES) + 2
    assert {task for task in TASKS if any(name.startswith(task) for name in names)} == set(TASKS)
    assert sum(name.startswith("circle") for name in names) == 9
    judged = [claim.claim for claim in done.claims if claim.verdict != "out of reach"]
    # the miniature is no BERT-base
    assert judged and not any("random start" in name or "circle" in name for name in judged)
    assert "miniature" in done.notes[0]
    assert all(claim.criterion for claim in done.claims)
    again = Reproduction.from_record(json.loads(json.dumps(done.record(), allow_nan=False)))
    assert again.record() == json.loads(json.dumps(done.record()))


@pytest.mark.download
def test_a_finished_part_is_not_done_again(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    paper = small()
    made = paper("quick", folder)
    monkeypatch.setattr(rank_collapse, "random_run", lambda *_: pytest.fail("done again"))
    monkeypatch.setattr(collapse_models, "catalogue_run", lambda *_: pytest.fail("done again"))
    monkeypatch.setattr(collapse_models, "collapse", lambda *_, **__: pytest.fail("done again"))
    assert paper("quick", folder, resume=True).record() == made.record()
    with pytest.raises(EigenlensError, match="already holds a reproduction"):
        paper("quick", folder)


def test_residuals_of_a_random_start_are_the_definition(done):
    model = random_starts.random_model("bert", 3, 48, 32, 0)
    ids = random_starts.texts(rank_collapse.QUICK, 0)
    for name, switches in VARIANTS.items():
        with torch.no_grad(), ablate(model, switches):
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        by_hand = [np.mean([residual(x.double().numpy()) for x in state]) for state in states]
        found = [
            r["residual"]
            for r in done.tables["random curves"]
            if (r["family"], r["variant"]) == ("bert", name)
        ]
        np.testing.assert_allclose(found, by_hand, rtol=1e-4, atol=1e-7)


def residual(X):
    def norm(A):
        return np.sqrt(np.abs(A).sum(0).max() * np.abs(A).sum(1).max())

    return norm(X - X.mean(0)) / norm(X)


def test_random_starts_are_measured_without_norms_and_on_another_text(done):
    model = random_starts.random_model("bert", 3, 48, 32, 0)
    quick = rank_collapse.QUICK
    ids = random_starts.texts(quick, 0)
    other = random_starts.texts(dataclasses.replace(quick, text="reviews"), 0)
    for form, what, text in (
        ("full", "without norms", ids),
        ("SAN+skip", "on another text", other),
    ):
        norm = what != "without norms"
        with torch.no_grad(), ablate(model, mlp=form == "full", norm=norm):
            states = model(input_ids=text, output_hidden_states=True).hidden_states
        by_hand = [np.mean([residual(x.double().numpy()) for x in state]) for state in states]
        rows = done.tables["random curves"]
        found = [
            r["residual"] for r in rows if (r["family"], r["variant"]) == ("bert", f"{form} {what}")
        ]
        np.testing.assert_allclose(found, by_hand, rtol=1e-4, atol=1e-7)


def test_the_theory_is_about_attention_without_mask_and_positions():
    import transformers

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes = {**shape, "intermediate_size": 64, "vocab_size": 50}
    t5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 50}
    ids = torch.arange(12)[None] + 3
    torch.manual_seed(0)
    models = {
        "covered": transformers.BertModel(transformers.BertConfig(**sizes)),
        "a mask and a rotary embedding or a norm of queries and keys": transformers.LlamaModel(
            transformers.LlamaConfig(**sizes, use_cache=False)
        ),
        "a position bias or a cap": transformers.T5EncoderModel(transformers.T5Config(**t5)),
        "a mask": transformers.GPT2Model(
            transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50, use_cache=False)
        ),
    }
    for expected, model in models.items():
        frozen = freeze(model.eval(), {"input_ids": ids})[0]
        facts = stack_facts(frozen, 5, 0)
        assert facts["theory"] == expected
        assert len(facts["single"]) == (2 if expected == "covered" else 0)


def test_every_picture_is_drawn(done):
    charts = collapse_charts(done.tables)
    assert list(charts) == ["random", "pretrained", "paths", "accuracy", "circle"]
    for chart in charts.values():
        chart.to_dict()
    drawn = (
        [row for data in charts["random"].to_dict()["datasets"].values() for row in data]
        if "datasets" in charts["random"].to_dict()
        else []
    )
    for panel in charts["random"].to_dict()["hconcat"]:
        for layer in panel["layer"]:
            drawn += layer.get("data", panel.get("data", {})).get("values", [])
    numbers = [row[key] for row in drawn for key in ("residual", "low", "high") if key in row]
    assert numbers and min(numbers) > 0  # a logarithmic axis has no zero


def small():
    """The paper with a part of the miniature."""
    scale = dataclasses.replace(rank_collapse.QUICK, random=("bert",), models=())
    return dataclasses.replace(rank_collapse.paper, quick=scale)
