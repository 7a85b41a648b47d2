"""A model with a plan beside the model without."""

import json
import math

import pytest
import torch
from torch.nn import functional as F

import eigenlens as el
from eigenlens.data.inputs import Request, prepare
from eigenlens.models.load import load
from eigenlens.plans.tasks import Perplexity
from tiny import some_text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluate")


@pytest.fixture(scope="module")
def encoder(planned):
    """A random BERT, a text, and a plan."""
    return planned.bert, planned.text, planned.plan


def test_the_embedding_measures_are_those_of_two_passes(encoder, planned, place, tmp_path):
    bert, _, plan = encoder
    other = some_text(place / "other.txt", documents=5)
    found = el.evaluate(bert, other, plan=planned.folder / "plan", max_inputs=10)
    model = el.load(bert)
    inputs = prepare(model, Request((str(other),), 24, 10, 0.5, 0, False), tmp_path)
    batches = [batch for group in inputs.groups for _, batch in inputs.batches(group, 100)]
    ids = torch.cat([batch["input_ids"] for batch in batches])
    with torch.no_grad():
        plain = model.module(ids).last_hidden_state.mean(1)
        with plan.applied(model):
            planned = model.module(ids).last_hidden_state.mean(1)
    cosine = F.cosine_similarity(plain, planned)
    assert found.value("cosine of the embeddings") == pytest.approx(float(cosine.mean()), abs=1e-5)
    assert found.value("least cosine") == pytest.approx(float(cosine.min()), abs=1e-5)
    a, b = F.normalize(plain, dim=1), F.normalize(planned, dim=1)
    agree = 0
    for i in range(len(a)):
        others = [j for j in range(len(a)) if j != i]
        agree += max(others, key=lambda j: float(a[i] @ a[j])) == max(
            others, key=lambda j: float(b[i] @ a[j])
        )
    assert found.value("retrieval agreement (nearest other input)") == pytest.approx(agree / len(a))
    assert found.facts.inputs == len(ids)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("length", [24, 12])
def test_one_to_three_inputs_of_other_data_or_another_length_are_the_first_of_the_text(
    encoder, place, number, length
):
    bert, text, plan = encoder
    given = some_text(place / "others.txt", documents=5) if length == 24 else text
    found = el.evaluate(bert, given, plan=plan, max_inputs=number, max_length=length)
    model = el.load(bert)
    tokens = torch.tensor(
        model.tokenizer(given.read_text(), add_special_tokens=False, verbose=False)["input_ids"]
    )
    body = tokens[: number * (length - 2)].view(number, length - 2)
    sides = (
        torch.full((number, 1), x)
        for x in (model.tokenizer.cls_token_id, model.tokenizer.sep_token_id)
    )
    ids = torch.cat([next(sides), body, next(sides)], 1)
    with torch.no_grad():
        plain = model.module(ids).last_hidden_state.mean(1)
        with plan.applied(model):
            planned = model.module(ids).last_hidden_state.mean(1)
    assert found.facts.inputs == number and found.facts.length == length
    cosine = F.cosine_similarity(plain, planned)
    assert found.value("cosine of the embeddings") == pytest.approx(float(cosine.mean()), abs=1e-5)
    assert found.value("least cosine") == pytest.approx(float(cosine.min()), abs=1e-5)


def test_a_text_of_two_inputs_is_evaluated_on_two_and_one_of_none_is_refused(encoder, tmp_path):
    bert, _, plan = encoder
    (tmp_path / "short.txt").write_text("word " * 50)
    (tmp_path / "shorter.txt").write_text("word " * 20)
    assert el.evaluate(bert, tmp_path / "short.txt", plan=plan, max_inputs=3).facts.inputs == 2
    assert el.evaluate(bert, tmp_path / "short.txt", plan=plan).facts.inputs == 2
    with pytest.raises(el.EigenlensError, match="too short for one input of 24 tokens"):
        el.evaluate(bert, tmp_path / "shorter.txt", plan=plan)


def test_on_the_data_of_the_study_it_uses_documents_nothing_has_seen(encoder):
    bert, text, plan = encoder
    found = el.evaluate(bert, text, plan=plan)
    request = plan.stored["study"]["request"]
    assert found.facts.inputs < request["inputs"] * request["held_out"]
    assert len(found.heads) == 4 and {
        "total_variation",
        "kl",
        "top_1",
        "output_error",
        "score_error",
    } <= set(found.heads[0])
    assert found.value("share of the multiply-adds for pairs") == pytest.approx(plan.work, abs=0.08)


def test_multiply_adds_are_counted(encoder):
    bert, _, plan = encoder
    rows = {row["measure"]: row for row in el.evaluate(bert, plan=plan, max_inputs=6).rows()}
    exact = 2 * 2 * 24 * 24 * 16 / 1e6
    assert rows["million multiply-adds for pairs"]["plain"] == pytest.approx(exact)
    share = rows["share of the multiply-adds for pairs"]["planned"]
    assert rows["million multiply-adds for pairs"]["planned"] == pytest.approx(
        exact * share, rel=1e-6
    )
    assert (
        rows["the same with projections"]["planned"]
        > rows["million multiply-adds for pairs"]["planned"]
    )


@pytest.mark.download
def test_perplexity_of_a_language_model_is_that_of_its_losses(place):
    """Real weights, causal, rotary.

    A study, a plan and its evaluation, held against losses worked out by hand.
    """
    model = load("stories15m")
    text = some_text(place / "stories.txt", documents=20)
    study = el.study(model, text, max_length=32, max_inputs=40, only=["rows", "moments"])
    plan = el.plan(study, budget=0.3, model=model, max_inputs=6, estimators=["joint", "adaptive"])
    found = el.evaluate(model, text, plan=plan, max_inputs=4)
    rows = {row["measure"]: row for row in found.rows()}
    assert rows["perplexity"]["plain"] > 1
    assert rows["perplexity"]["change"] == pytest.approx(
        rows["perplexity"]["planned"] / rows["perplexity"]["plain"] - 1
    )
    assert 0 < rows["total variation of the patterns"]["planned"] < 0.3
    ids = torch.tensor(
        [
            model.tokenizer("Once upon a time there was a little girl who lived in a house.")[
                "input_ids"
            ]
        ]
    )
    with torch.no_grad():
        plain = model.module(ids)
        with plan.applied(model):
            planned = model.module(ids)
    task = Perplexity()
    task.add(*(task.observe({"input_ids": ids}, each) for each in (plain, planned)))
    for key, output in (("plain", plain), ("planned", planned)):
        losses = [
            -math.log(float(output.logits[0, i].softmax(-1)[ids[0, i + 1]]))
            for i in range(ids.shape[1] - 1)
        ]
        assert task.result()[0][key] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)


@pytest.mark.download
def test_generation_with_a_cache_attends_exactly_after_the_prompt(place):
    model = load("stories15m")
    study = el.study(
        model, some_text(place / "more.txt"), max_length=32, max_inputs=24, only=["rows", "moments"]
    )
    plan = el.plan(study, budget=0.9, model=model, max_inputs=2, estimators=["joint"])
    ids = torch.tensor([model.tokenizer("Once upon a time")["input_ids"]])
    with torch.no_grad(), plan.applied(model):
        out = model.module.generate(ids, max_new_tokens=8, do_sample=False)
    assert out.shape[1] == ids.shape[1] + 8


def test_padded_inputs_are_evaluated_without_their_padding(encoder):
    bert, text, plan = encoder
    found = el.evaluate(bert, text, plan=plan, padding=True, max_inputs=8)
    assert 0 < found.value("total variation of the patterns") < 1


def test_a_shorter_length_is_served_and_a_longer_one_refused(encoder):
    bert, text, plan = encoder
    assert el.evaluate(bert, text, plan=plan, max_length=12, max_inputs=6).facts.length == 12
    with pytest.raises(el.EigenlensError, match="up to 24 tokens, not 40"):
        el.evaluate(bert, text, plan=plan, max_length=40)


def test_an_evaluation_shows_itself(encoder):
    found = el.evaluate(encoder[0], plan=encoder[2], max_inputs=4)
    assert "<table>" in found._repr_html_()
    found.plot().to_dict()


@pytest.fixture(scope="module")
def kept(encoder, place):
    """An evaluation in a folder."""
    return el.evaluate(encoder[0], plan=encoder[2], max_inputs=6, output_dir=place / "evaluation")


def test_an_evaluation_read_again_is_the_same(encoder, kept, place):
    again = el.Evaluation.open(place / "evaluation")
    assert again == kept and again.record() == kept.record()
    assert sorted(json.loads((place / "evaluation" / "evaluation.json").read_text())) == [
        "facts",
        "format",
        "heads",
        "summary",
    ]
    assert again.name == "bert on text.txt"
    assert again.stored["plan"]["work"] == sum(choice.work for choice in encoder[2].choices) / 4


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "evaluation.json").unlink(), "has no evaluation.json"),
        (lambda d: (d / "evaluation.json").rename(d / "plan.json"), "has no evaluation.json"),
        (lambda d: (d / "evaluation.json").write_text('{"format": 1'), "cannot be read"),
        (lambda d: (d / "evaluation.json").write_text("[]"), "format None"),
        (lambda d: (d / "evaluation.json").write_text('{"format": 99}'), "format 99"),
        (lambda d: (d / "evaluation.json").write_text('{"format": 1}'), "damaged: KeyError"),
        (lambda d: _edit(d, lambda r: r["facts"].pop("model")), "damaged: KeyError.'model'"),
        (lambda d: _edit(d, lambda r: r["facts"]["plan"].pop("work")), "damaged: KeyError.'work'"),
        (lambda d: _edit(d, lambda r: r["summary"].clear()), "damaged"),
        (
            lambda d: _edit(d, lambda r: r["summary"][0].pop("planned")),
            "damaged: KeyError.'planned'",
        ),
        (lambda d: _edit(d, lambda r: r["summary"][0].update(plain="none")), "damaged"),
        (lambda d: _edit(d, lambda r: r["heads"].clear()), "damaged"),
        (lambda d: _edit(d, lambda r: r["heads"][0].pop("layer")), "damaged: KeyError.'layer'"),
        (lambda d: _edit(d, lambda r: r.update(heads=3)), "damaged"),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused(kept, tmp_path, damage, says):
    folder = kept.save(tmp_path / "copy")
    damage(folder)
    with pytest.raises(el.EigenlensError, match=says):
        el.Evaluation.open(folder)


def _edit(folder, change):
    record = json.loads((folder / "evaluation.json").read_text())
    change(record)
    (folder / "evaluation.json").write_text(json.dumps(record))


def test_a_folder_is_overwritten_only_when_asked_and_never_that_of_another_result(
    encoder, planned, kept, place, tmp_path
):
    bert, _, plan = encoder
    folder = kept.save(tmp_path / "copy")
    with pytest.raises(
        el.EigenlensError,
        match=r"already exists; name another folder, or overwrite it with overwrite=True \(",
    ):
        el.evaluate(bert, plan=plan, max_inputs=2, output_dir=folder)
    el.evaluate(bert, plan=plan, max_inputs=2, output_dir=folder, overwrite=True)
    assert el.Evaluation.open(folder).facts.inputs == 2
    for other, what in ((planned.folder / "plan", "a plan"), (planned.folder / "study", "a study")):
        with pytest.raises(
            el.EigenlensError,
            match=f"is the folder of {what}; name another folder for the evaluation",
        ):
            el.evaluate(bert, plan=plan, max_inputs=2, output_dir=other, overwrite=True)
    with pytest.raises(
        el.EigenlensError, match="is the folder of an evaluation; name another folder for the plan"
    ):
        el.plan(planned.folder / "study", budget=0.5, output_dir=folder, overwrite=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(el.EigenlensError, match="is a file"):
        el.evaluate(bert, plan=plan, max_inputs=2, output_dir=tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_the_sentence_has_the_numbers(kept):
    rows = {row["measure"]: row["planned"] for row in kept.rows()}
    assert (
        f"the embeddings keep a cosine of {rows['cosine of the embeddings']:.4f} with the plain"
        " model's (1: identical; 95 % interval " in kept.sentence
    )
    assert kept.sentence.endswith("counts what a kernel would save, so no seconds are shown.")
    assert not [name for name in rows if "second" in name or "memory" in name]
    assert (
        f"move by {rows['total variation of the patterns']:.3f} in total variation" in kept.sentence
    )
    assert (
        f"This takes {100 * rows['share of the multiply-adds for pairs']:.1f} % of the"
        " multiply-adds for pairs." in kept.sentence
    )


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ((2.0, 1.0), "The model got 2.00 times faster (1 s instead of 2 s for all passes)."),
        ((1.0, 1.5), "The model got 1.50 times slower (1.5 s instead of 1 s for all passes)."),
        (
            (1.0, 1.01),
            "The model is about as fast as before (1.01 s instead of 1 s for all passes).",
        ),
    ],
)
def test_the_sentence_of_a_language_model_with_blocks(seconds, says):
    values = {
        "relative error of the attention output": (0.0, 0.0421),
        "share of the work of causal attention": (1.0, 0.332),
        "share of the work of causal attention, at fitting": (1.0, 0.305),
        "perplexity": (20.0, 21.0),
        "seconds of the whole passes": seconds,
    }
    summary = [
        {"measure": name, "plain": plain, "planned": planned}
        for name, (plain, planned) in values.items()
    ]
    assert (
        el.Evaluation({}, summary, []).sentence
        == "With the plan the perplexity goes from 20 to 21 (+5.0 %), and the attention output has"
        " a relative error of 0.042. This takes 33.2 % of the work of causal attention (30.5 % were"
        f" planned). {says}"
    )
    older = [row for row in summary if row["measure"] != "share of the work of causal attention"]
    assert (
        f"This takes a planned 30.5 % of the work of causal attention (not counted here). {says}"
        in (el.Evaluation({}, older, []).sentence)
    )
