"""Plans: made from a study, kept in a folder, put into the model."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import eigenlens as el
from eigenlens.cli.terminal import show
from eigenlens.estimators.candidates import ESTIMATORS
from eigenlens.plans.held_out import held_out_of
from tiny import some_text, tiny_bert


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("plan")


@pytest.fixture(scope="module")
def study(place, bert):
    return el.study(
        bert, some_text(place / "text.txt"), place / "study", max_length=24, max_inputs=60, rank=8
    )


@pytest.fixture(scope="module")
def quarter(place, study):
    return el.plan(study, budget=0.25, max_inputs=12, output_dir=place / "quarter")


def ids(length=24):
    return torch.randint(1000, 20_000, (3, length), generator=torch.Generator().manual_seed(1))


def test_the_budget_is_kept_and_every_head_has_its_reason(quarter):
    assert quarter.work <= 0.25 + 1e-9
    assert len(quarter.choices) == 4 and all(choice.why for choice in quarter.choices)
    # no heads share their keys, and nothing is masked
    tried = set(ESTIMATORS) - {"joint-grouped", "joint-fitted"}
    assert {row["estimator"] for row in quarter.curve} == tried
    for name in tried - {"mean", "exact", "adaptive"}:
        assert {0.05, 0.1, 0.25, 0.5} <= {
            row["budget"] for row in quarter.curve if row["estimator"] == name
        }


def test_a_plan_of_a_partial_study_says_so(study, quarter, capsys, monkeypatch, tmp_path):
    assert quarter.notes == ()
    failed = {"shard": 3, "inputs": 4, "documents": ["a.txt"], "error": "layers are not finite"}
    monkeypatch.setitem(study.stored, "partial", [failed])
    made = el.plan(study, budget=0.5, max_inputs=4, output_dir=tmp_path / "plan")
    show(made)
    assert el.Plan.open(tmp_path / "plan").notes == made.notes
    told = (
        "Note: the study is partial: 1 shard with 4 inputs failed, the first of them (documents"
        " a.txt) with: layers are not finite."
    )
    assert told in capsys.readouterr().out


def test_more_budget_loses_less(study, quarter):
    half = el.plan(study, budget=0.5, max_inputs=12)
    assert half.total_variation < quarter.total_variation
    assert el.plan(study, budget=1.0, max_inputs=4).total_variation == 0


def test_the_figures_of_a_choice_are_those_of_the_model(study, quarter, bert, tmp_path):
    """Total variation over the same inputs, from the model's own eager attention and the plan's
    scores.
    """
    held = held_out_of(study, el.load(study.facts.model.load_from), None, tmp_path)
    eager = el.load(bert).module
    eager.set_attn_implementation("eager")
    lost, rows = torch.zeros(2, 2), 0
    with torch.no_grad():
        for batch in held.batches(12):
            true = eager(**batch, output_attentions=True).attentions  # 2 of (B, 2, 24, 24)
            with el.capture(held.model.backbone) as calls:
                held.model.backbone(**batch)
            for layer, call in enumerate(calls):
                estimated = torch.softmax(quarter.scores(call).scores, -1)
                lost[layer] += (estimated - true[layer]).abs().sum((0, 2, 3)) / 2
            rows += len(calls[0].q) * 24
    stated = torch.tensor([choice.total_variation for choice in quarter.choices]).view(2, 2)
    torch.testing.assert_close(stated, lost / rows, atol=1e-5, rtol=1e-4)


def test_an_error_is_kept_by_every_head(study):
    plan = el.plan(study, error=0.02, max_inputs=12)
    assert max(choice.total_variation for choice in plan.choices) <= 0.02
    looser = el.plan(study, error=0.3, max_inputs=12)
    assert looser.work < plan.work


def test_a_plan_read_again_is_the_same(place, quarter, bert):
    again = el.Plan.open(place / "quarter")
    assert again.rows() == quarter.rows()
    model = el.load(bert).module
    with torch.no_grad(), quarter.applied(model):
        first = model(ids()).last_hidden_state
    with torch.no_grad(), again.applied(model):
        assert torch.equal(model(ids()).last_hidden_state, first)
    assert json.loads((place / "quarter" / "plan.json").read_text())["heads"][0]["why"]


def test_the_model_attends_by_the_plan(quarter, bert):
    """The planned model against a forward in which each layer's pattern is the softmax of the
    plan's own scores.
    """
    model = el.load(bert).module
    with torch.no_grad():
        plain = model(ids()).last_hidden_state
        with el.replace_attention(
            model, lambda call: torch.softmax(quarter.scores(call).scores, -1) @ call.v
        ):
            expected = model(ids()).last_hidden_state
        with quarter.applied(model):
            planned = model(ids()).last_hidden_state
        assert torch.equal(model(ids()).last_hidden_state, plain)
    torch.testing.assert_close(planned, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(planned, plain, atol=1e-3)


def test_a_plan_for_everything_leaves_the_model_as_it_is(study, bert):
    model = el.load(bert).module
    plan = el.plan(study, budget=1.0, max_inputs=4)
    with torch.no_grad():
        plain = model(ids()).last_hidden_state
        with plan.applied(model):
            torch.testing.assert_close(model(ids()).last_hidden_state, plain, atol=1e-5, rtol=1e-4)


def test_registered_it_stays(quarter, bert):
    model = el.load(bert).module
    with torch.no_grad():
        with quarter.applied(model):
            expected = model(ids()).last_hidden_state
        el.attention.register("planned-in-a-test", quarter.mechanism(model))
        model.set_attn_implementation("planned-in-a-test")
        torch.testing.assert_close(model(ids()).last_hidden_state, expected)


class Own(nn.Module):
    """A module outside the transformers library."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            q, k, v = layer(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(3 * q, k, v, is_causal=True).transpose(
                1, 2
            ).flatten(2)
        return x


def test_a_module_of_ones_own_is_planned_and_evaluated():
    torch.manual_seed(0)
    own = Own().eval()
    tokens = np.random.default_rng(0).integers(0, 100, (60, 16))
    made = el.study(own, tokens, max_inputs=60, max_length=16)
    with pytest.raises(el.EigenlensError, match="give this module again"):
        el.plan(made, budget=0.5)
    plan = el.plan(made, budget=0.5, model=own, data=tokens, max_inputs=8)
    assert plan.work <= 0.5 + 1e-9
    found = el.evaluate(own, tokens, plan=plan, max_inputs=8)
    assert 0 < found.value("total variation of the patterns") < 0.5
    with pytest.raises(el.EigenlensError, match="does not use transformers' attention interface"):
        plan.mechanism(own)


def test_bad_targets_are_refused(study):
    for wrong in (
        {"budget": 0.0},
        {"budget": 1.5},
        {"budget": -1},
        {"error": 0.0},
        {"error": float("nan")},
    ):
        with pytest.raises(el.EigenlensError, match="must be above 0"):
            el.plan(study, **wrong)
    for wrong in ({}, {"budget": 0.5, "error": 0.1}):
        with pytest.raises(el.EigenlensError, match="needs a loss, a budget or an error"):
            el.plan(study, **wrong)
    with pytest.raises(el.EigenlensError, match="no estimator 'magic'"):
        el.plan(study, budget=0.5, estimators=["magic"])


def test_only_the_estimators_asked_for(study):
    plan = el.plan(study, budget=0.3, estimators=["joint"], max_inputs=4)
    assert {choice.estimator for choice in plan.choices} <= {"joint", "exact"}


def test_a_plan_for_another_model_is_refused(place, quarter):
    other = el.load(tiny_bert(place / "other", seed=3)).module
    with pytest.raises(el.EigenlensError, match="the plan was made for"), quarter.applied(other):
        pass


def test_an_input_longer_than_the_plan_is_exact_and_counted(place, quarter, bert):
    plan, model = el.Plan.open(place / "quarter"), el.load(bert).module
    with torch.no_grad():
        plain = model(ids(40)).last_hidden_state
        with plan.applied(model):
            assert torch.equal(model(ids(40)).last_hidden_state, plain)
            assert not torch.allclose(model(ids(24)).last_hidden_state, plain[:, :24], atol=1e-3)
    assert plan.tally.record() == {"planned": 2, "long": 2} and plan.simulated


def test_a_study_without_what_a_plan_needs_is_refused(place, bert):
    bare = el.study(bert, place / "text.txt", max_length=24, max_inputs=20, only=["rows"])
    with pytest.raises(el.EigenlensError, match="made without moments"):
        el.plan(bare, budget=0.5)
    pattern = el.study(bert, place / "text.txt", max_length=24, max_inputs=20, of="pattern")
    with pytest.raises(el.EigenlensError, match="is of patterns"):
        el.plan(pattern, budget=0.5)


def test_a_study_without_matrices_goes_without_their_estimator(place, bert):
    some = el.study(
        bert, place / "text.txt", max_length=24, max_inputs=40, only=["rows", "moments"]
    )
    plan = el.plan(some, budget=0.5, max_inputs=4)
    assert "matrices-lmmse" not in {row["estimator"] for row in plan.curve}


def test_changed_data_is_noticed(place, bert):
    text = some_text(place / "changing.txt")
    made = el.study(bert, text, max_length=24, max_inputs=40)
    text.write_text("Something else altogether. " * 4000)
    with pytest.raises(el.EigenlensError, match="has changed since"):
        el.plan(made, budget=0.5)
    text.unlink()
    with pytest.raises(el.EigenlensError, match="cannot be read again"):
        el.plan(made, budget=0.5)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "plan.json").unlink(), "has no plan.json"),
        (lambda d: (d / "plan.json").write_text("{"), "cannot be read"),
        (lambda d: (d / "plan.json").write_text('{"format": 99}'), "format 99"),
        (lambda d: (d / "plan.json").write_text("[]"), "format None"),
        (lambda d: (d / "plan.safetensors").write_bytes(b"no"), "damaged"),
        (lambda d: (d / "plan.safetensors").unlink(), "damaged"),
        (lambda d: _edit(d, lambda r: r.pop("heads")), "damaged"),
        (
            lambda d: _edit(d, lambda r: r["parts"]["encoder/0"][0].update(estimator="magic")),
            "'magic'",
        ),
        (
            lambda d: _edit(d, lambda r: r["parts"]["encoder/0"][0].update(heads=[0, 1, 2, 3, 4])),
            "damaged",
        ),
    ],
)
def test_a_damaged_plan_is_refused(place, quarter, tmp_path, damage, says):
    folder = shutil.copytree(place / "quarter", tmp_path / "copy")
    damage(folder)
    with pytest.raises(el.EigenlensError, match=says):
        el.Plan.open(folder)


def _edit(folder, change):
    record = json.loads((folder / "plan.json").read_text())
    change(record)
    (folder / "plan.json").write_text(json.dumps(record))


def test_a_plan_shows_itself(quarter):
    assert "<table>" in quarter._repr_html_()
    quarter.plot().to_dict()


def test_an_existing_folder_is_not_overwritten(place, study, quarter):
    with pytest.raises(el.EigenlensError, match="already exists"):
        el.plan(study, budget=0.5, output_dir=place / "quarter")


def test_an_input_shorter_than_the_selected_keys_is_refused(study, bert):
    plan = el.plan(study, budget=0.95, estimators=["rows-lmmse"], max_inputs=4)
    most = max(choice.settings.get("keys", 0) for choice in plan.choices)
    assert most > 3
    model = el.load(bert).module
    with pytest.raises(el.EigenlensError, match="3 "), torch.no_grad(), plan.applied(model):
        model(ids(3))
