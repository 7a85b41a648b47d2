"""A plan in a model in use: it changes nothing but the attention."""

import pytest
import torch

import eigenlens as el


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("use")


@pytest.fixture(scope="module")
def study(place, llama, text):
    return el.study(llama, text, place / "study", max_length=32, max_inputs=40, rank=8)


@pytest.fixture(scope="module")
def plan(study):
    return el.plan(study, budget=0.3, max_inputs=4, estimators=["joint", "adaptive"])


def ids():
    return torch.randint(1000, 20_000, (1, 32), generator=torch.Generator().manual_seed(1))


def test_nothing_of_a_causal_plan_sees_a_later_token(study, llama):
    for names in (["cur"], ["matrices-lmmse"], None):
        made = el.plan(study, budget=1.0 if names else 0.4, estimators=names, max_inputs=4)
        assert not {"cur", "matrices-lmmse"} & {choice.estimator for choice in made.choices}
        model, first, other = el.load(llama).module, ids(), ids()
        other[:, 20:] += 7
        with torch.no_grad(), made.applied(model):
            gap = (model(first).logits - model(other).logits).abs().amax((0, 2))
        assert gap[:20].max() < 1e-5 and gap[20:].max() > 1e-3


def test_the_mode_of_the_model_stays(plan, llama):
    model = el.load(llama).module.train()
    with torch.no_grad(), plan.applied(model):
        model(ids())
    assert model.training


def test_gradients_flow_through_estimated_scores(study, plan, llama):
    """Against a finite difference of the loss along a random change of the last layer's queries, in
    a static subspace.
    """
    made = el.plan(study, budget=0.3, max_inputs=2, estimators=["joint"])
    model = el.load(llama).module.double()
    weight = model.model.layers[1].self_attn.q_proj.weight
    direction = torch.randn(
        weight.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )

    def loss(step=0.0):
        if step:
            weight.add_(step * direction)
        found = model(ids(), labels=ids()).loss
        if step:
            weight.sub_(step * direction)
        return found

    with el.replace_attention(model.model, made.attend):
        loss().backward()
        with torch.no_grad():
            slope = (loss(1e-3) - loss(-1e-3)) / 2e-3
    assert float((weight.grad * direction).sum()) == pytest.approx(float(slope), rel=0.01)
    with el.replace_attention(model.model, plan.attend):
        loss().backward()  # a cascade, too


def test_an_empty_block_is_no_error_and_errors_of_the_block_stay_what_they_are(plan, llama):
    model = el.load(llama).module
    with plan.applied(model):
        pass
    with pytest.raises(KeyError, match="mine"), plan.applied(model):
        raise KeyError("mine")


def test_a_capture_of_a_model_with_a_registered_plan_runs_that_plan(plan, llama):
    model = el.load(llama).module
    el.attention.register("captured-in-a-test", plan.mechanism(model))
    with torch.no_grad():
        plain = model(ids()).logits
        model.set_attn_implementation("captured-in-a-test")
        planned = model(ids()).logits
        with el.capture(model) as calls:
            seen = model(ids()).logits
    assert (
        len(calls) == 2
        and torch.equal(seen, planned)
        and not torch.allclose(seen, plain, atol=1e-3)
    )


def test_a_budget_that_cannot_be_kept_is_refused(study):
    with pytest.raises(
        el.EigenlensError, match=r"cannot stay within a budget of .*, they take at least 1; raise"
    ):
        el.plan(study, budget=0.25, estimators=["exact"], max_inputs=2)
    with pytest.raises(el.EigenlensError, match="cannot stay within a budget of 1e-09"):
        el.plan(study, budget=1e-9, blocks=True, max_length=600)
    with pytest.raises(el.EigenlensError, match="no estimator is left"):
        el.plan(study, budget=0.25, estimators=[])


def test_a_plan_for_everything_is_exact_attention(study):
    assert {choice.estimator for choice in el.plan(study, budget=1.0, max_inputs=4).choices} == {
        "exact"
    }


def test_a_plan_is_not_written_into_a_study(study):
    with pytest.raises(el.EigenlensError, match="is the folder of a study"):
        el.plan(study, budget=0.5, output_dir=study.folder, overwrite=True)


def test_an_evaluation_says_when_its_inputs_are_not_new(plan, llama, text):
    assert el.evaluate(llama, plan=plan, max_inputs=2).notes == ()
    again = el.evaluate(llama, text, plan=plan, max_inputs=6, max_length=24)
    assert "the study was made from this text" in again.notes[0]


def test_a_vanished_place_is_a_sentence(study):
    with pytest.raises(el.EigenlensError, match="cannot be written"):
        el.plan(
            study, budget=0.5, max_inputs=2, estimators=["joint"], output_dir="/proc/nowhere/plan"
        )


def test_a_bert_s_plan_may_use_every_estimator(bert, text):
    made = el.study(bert, text, max_length=24, max_inputs=40, rank=8)
    found = el.plan(made, budget=0.5, max_inputs=2)
    assert {"cur", "matrices-lmmse"} <= {row["estimator"] for row in found.curve}
