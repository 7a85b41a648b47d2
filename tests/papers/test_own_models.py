"""`reproduce --model`: models of the user's own in the place of those that a paper names."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from eigenlens import EigenlensError, load, papers
from eigenlens.models import catalogue
from eigenlens.models.borrowed_names import named
from eigenlens.papers import find_paper
from eigenlens.papers.doubly_normalised.keys import model_keys
from eigenlens.papers.own_models import OwnModels
from eigenlens.papers.rank_versus_heads.truncated import outputs
from papers.small_paper import small_paper
from papers.test_reproduce_command import run
from tiny import tiny_bert, tiny_llama

ANY = {"models": ("models",)}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Two encoders whose folders have the same name, and a decoder."""
    root = tmp_path_factory.mktemp("own")
    for name, seed in (("one", 1), ("two", 2)):
        (root / name / "bert").mkdir(parents=True)
        tiny_bert(root / name / "bert", seed)
    (root / "llama").mkdir()
    tiny_llama(root / "llama")
    return root


def encoder(own):
    return own / "one" / "bert"


def test_a_folder_stands_in_for_the_papers_models(own, tmp_path):
    done = small_paper(**ANY)("quick", tmp_path / "run", model=[encoder(own), "minilm"])
    assert done.settings["models"] == ["bert", "minilm"]
    rows = {row["model"]: row for row in done.tables["models"]}
    assert list(rows) == ["bert", "minilm"]
    assert rows["bert"]["fingerprint"] == load(encoder(own)).facts.fingerprint
    assert rows["bert"]["loaded as"] == "bert"
    assert "bert, minilm: given in the place of the catalogue's models" in done.notes
    assert (tmp_path / "run" / "models" / "bert.json").is_file()


def test_folders_of_one_name_do_not_collide(own, tmp_path):
    given = [own / "one" / "bert", own / "two" / "bert", own / "one" / "bert"]
    done = small_paper(**ANY)("quick", tmp_path / "run", model=given)
    rows = {row["model"]: row["fingerprint"] for row in done.tables["models"]}
    assert rows == {
        f"{name}/bert": load(own / name / "bert").facts.fingerprint for name in ("one", "two")
    }
    kept = sorted(path.relative_to(tmp_path / "run") for path in tmp_path.rglob("bert.json"))
    assert kept == [Path("models/one/bert.json"), Path("models/two/bert.json")]


def test_the_catalogues_own_folder_is_the_catalogues_model(tmp_path):
    folder = catalogue.model_folder("minilm")
    done = small_paper(**ANY)("quick", tmp_path / "run", model=[folder])
    (row,) = done.tables["models"]
    assert row["model"] == "models/minilm"  # the name alone is the catalogue's
    assert row["fingerprint"] == load("minilm").facts.fingerprint


def test_a_run_goes_on_with_the_same_weights_alone(own, tmp_path):
    copy = tmp_path / "bert"
    copy.mkdir()
    tiny_bert(copy, 1)
    paper, folder = small_paper(**ANY), tmp_path / "run"
    done = paper("quick", folder, model=[copy])
    assert paper("quick", folder, resume=True, model=[encoder(own)]).record() == done.record()
    tiny_bert(copy, 7)
    with pytest.raises(EigenlensError, match="begun with another model weights"):
        paper("quick", folder, resume=True, model=[copy])
    with pytest.raises(EigenlensError, match="begun with another models"):
        paper("quick", folder, resume=True)


def test_a_model_of_another_kind_is_left_out_with_a_note(own, tmp_path):
    paper = small_paper(**ANY, kinds=("encoder",))
    done = paper("quick", tmp_path / "run", model=[own / "llama", encoder(own)])
    assert [row["model"] for row in done.tables["models"]] == ["bert"]
    assert (
        "llama was left out: it is a decoder, and the paper small measures encoders" in done.notes
    )


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ({"models": ("models",), "kinds": ("encoder", "vision")}, ["llama"],
         "the paper small measures encoders and vision models; llama is a decoder"),
        ({}, ["llama"], "the paper small measures no models by name; those that do are eigen-"),
        ({"models": ("models",)}, ["nowhere/at/all"], "no such model: 'nowhere/at/all'"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_one_sentence(
    monkeypatch, capsys, own, tmp_path, options, given, words
):
    monkeypatch.setitem(papers.PAPERS, "small", small_paper(**options))
    monkeypatch.chdir(own)
    asked = [part for name in given for part in ("--model", name)]
    code, out, err = run(monkeypatch, capsys, "small", *asked, "-o", tmp_path / "out")
    assert (code, out) == (2, "") and err.startswith(f"eigenlens: {words}")
    assert err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_damaged_model_is_refused_before_any_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(papers.PAPERS, "small", small_paper(**ANY))
    (tmp_path / "bert").mkdir()
    weights = tiny_bert(tmp_path / "bert") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    capsys.readouterr()  # of the saving
    code, _, err = run(
        monkeypatch, capsys, "small", "--model", tmp_path / "bert", "-o", tmp_path / "out"
    )
    assert code == 2 and err.count("\n") == 1 and "bert" in err
    assert not (tmp_path / "out").exists()


def test_a_paper_of_one_model_takes_one(own, tmp_path):
    gap = find_paper("mind-the-gap")
    scale, _ = OwnModels.of([encoder(own)]).put_into(gap.quick, gap)
    assert scale == replace(gap.quick, model="bert")
    with pytest.raises(EigenlensError, match="measures one model, and 2 were given"):
        gap("quick", tmp_path / "run", model=[encoder(own), own / "two" / "bert"])
    assert not (tmp_path / "run").exists()


def test_without_a_paper_those_run_that_can_measure_a_model(monkeypatch, capsys, own, tmp_path):
    known = {
        "none": small_paper("none"),
        "encoders": small_paper("encoders", **ANY, kinds=("encoder",)),
        "decoders": small_paper("decoders", **ANY, kinds=("decoder",)),
    }
    monkeypatch.setattr(papers, "PAPERS", known)
    monkeypatch.setattr("eigenlens.papers.find_paper", known.__getitem__)
    asked = ("--model", encoder(own), "--quick", "-o", tmp_path, "--json")
    code, out, err = run(monkeypatch, capsys, *asked)
    record = json.loads(out)
    assert code == 0 and record["paper"] == "encoders" and record["settings"]["models"] == ["bert"]
    assert "eigenlens: none, decoders are left out: they measure no such model\n" in err


def test_fields_that_take_models_are_those_that_name_them():
    """Every field named by a paper holds names of models, and every paper of models names it."""
    for name, paper in papers.PAPERS.items():
        for scale in (paper.quick, paper.full):
            held = [getattr(scale, field) for field in paper.models]
            names = [
                one for value in held for one in ([value] if isinstance(value, str) else value)
            ]
            assert bool(names) == bool(paper.models), name
            assert all(one in catalogue.MODELS for one in names), name


def test_a_folder_is_measured_as_the_catalogues_model_is():
    sizes = ("python-docs", 24, 3, 0)
    with named({"mine": str(catalogue.model_folder("minilm"))}):
        ours = model_keys("mine", *sizes)
    theirs = model_keys("minilm", *sizes)
    assert {row["model"] for row in ours["heads"]} == {"mine"}
    for mine, other in zip(ours["heads"], theirs["heads"], strict=True):
        assert {**mine, "model": "minilm"} == other


def test_an_encoder_with_a_head_for_words_is_measured_by_its_tokens():
    """As BERT comes from the hub: its output are logits, its tokens those of the model inside."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    made = BertForMaskedLM(BertConfig(**sizes, num_attention_heads=2)).eval()
    batch = {"input_ids": torch.arange(12).view(2, 6)}
    (found,) = outputs(load(made), [batch])
    expected = made(**batch, output_hidden_states=True).hidden_states[-1].mean(1)
    torch.testing.assert_close(found, expected)
