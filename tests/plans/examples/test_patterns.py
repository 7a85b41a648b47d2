"""Patterns kept with a plan: the model's own, and those of every candidate."""

import numpy as np
import pytest
import torch

import eigenlens as el
from eigenlens.captures import Head
from eigenlens.data.facts import DataFacts
from eigenlens.data.inputs import Inputs
from eigenlens.data.split import FIT
from eigenlens.models.facts import ModelFacts
from eigenlens.models.load import Model
from eigenlens.plans.held_out import HeldOut
from plans.examples.by_model import check_patterns, eager_of, held_out_ids, matched, words
from tiny import of_catalogue


def test_patterns_and_tokens_are_those_of_the_model(bert, tmp_path):
    folder, _, plan = bert
    model = el.load(folder)
    found = matched(plan, model, tmp_path / "spool")
    check_patterns(plan, model, [batch for batch, _ in found], eager_of(el.load(folder)))


def test_the_inputs_are_held_out(bert, tmp_path):
    folder, _, plan = bert
    model = el.load(folder)
    assert len(matched(plan, model, tmp_path / "spool")) == 3
    _, (fit,) = held_out_ids(plan, model, tmp_path / "again")
    fitted = {words(model.tokenizer, row) for row in fit["input_ids"].tolist()}
    assert len(fitted) > 50 and not fitted & {tokens["encoder"] for tokens in plan.examples.tokens}


@pytest.mark.parametrize(
    ("documents", "number", "expected"),
    [
        ([0, 1, 1, 1, 2, 3], 6, [1, 4, 5]),  # one of each document
        # the plan saw two documents only: a second input of one of them
        ([0, 1, 1, 1, 2, 3], 3, [1, 4, 2]),
        ([0, 5, 5, 5, 4, 4], 6, [1, 4, 2]),
        ([0, 1, 2, 2, 2, 2], 2, [1, 4]),
    ],
)
def test_the_inputs_are_of_different_documents_where_possible(documents, number, expected):
    """Input 0 is fit, 1 to 3 are one held-out group, 4 and 5 another; the plan takes them in
    turn.
    """
    inputs = Inputs(
        np.array([FIT, 0, 0, 0, 1, 1]),
        np.array(documents),
        8,
        lambda rows: {"rows": torch.from_numpy(rows)},
        DataFacts("none"),
    )
    held = HeldOut(Model(ModelFacts("none"), torch.nn.Identity()), inputs, [0, 1], 1, [])
    assert held.apart(number, 3)["rows"].tolist() == expected


def test_every_candidate_s_patterns_lose_what_its_figure_says(bert):
    """The examples are all inputs of this plan and whole ones: ½ Σ|p̂ − p| over their rows is each
    candidate's figure.
    """
    examples = bert[2].examples
    I, P, C, n, _ = examples.estimated.shape
    assert (I, P, n) == (3, 4, 24) and len(examples.candidates) == C > 25
    lost = (examples.estimated.double() - examples.true.double()[:, :, None]).abs().sum(
        (0, 3, 4)
    ) / (2 * I * n)
    served = np.isfinite(examples.total_variation)  # (P, C)
    assert {examples.candidates[c][0] for c in np.flatnonzero(~served.all(0))} == {"joint-grouped"}
    np.testing.assert_allclose(examples.total_variation[served], lost.numpy()[served], atol=1e-3)
    assert np.isnan(lost.numpy()[~served]).all()
    for p, choice in enumerate(sorted(bert[2].choices, key=lambda choice: choice.total_variation)):
        assert examples.heads[p] == Head(choice.stack, choice.layer, choice.head)
        chosen = examples.chosen[p]
        assert choice.estimator == ("exact" if chosen is None else examples.candidates[chosen][0])
        if chosen is not None:
            assert examples.work[p, chosen] == choice.work
            assert examples.total_variation[p, chosen] == choice.total_variation


@pytest.mark.slow
def test_heads_are_spread_from_the_best_to_the_worst(place):
    """Real weights, 72 heads: six of them at the fifths of what the plan leaves."""
    model = of_catalogue("minilm")
    study = el.study(
        model, place / "text.txt", max_length=64, max_inputs=24, only=["rows", "moments"]
    )
    plan = el.plan(study, budget=0.3, model=model, max_inputs=4, estimators=["joint", "adaptive"])
    left = sorted(choice.total_variation for choice in plan.choices)
    of = {choice.at: choice.total_variation for choice in plan.choices}
    lost = [of[head] for head in plan.examples.heads]
    assert len(set(plan.examples.heads)) == 6 and plan.examples.true.shape[2:] == (48, 48)
    for i, value in enumerate(lost):
        assert left[int(71 * i / 5)] <= value <= left[-(-71 * i // 5)]
    rows = plan.examples.true.float().sum(-1)
    assert 0.5 < float(rows.mean()) <= 1.001  # 48 of 64 keys


def test_the_best_within_a_budget_is_found_by_looking_at_all(bert):
    examples = bert[2].examples
    for head in range(len(examples.heads)):
        for budget in (0.0, 0.03, 0.1, 0.25, 0.4, 1.0):
            within = [
                (examples.total_variation[head, c], c)
                for c in range(len(examples.candidates))
                if examples.work[head, c] <= budget + 1e-9
            ]
            assert examples.best(head, budget) == (min(within)[1] if within else None)
    index = examples.at(0, "joint", 0.25)
    assert examples.candidates[index] == ("joint", 0.25)
    assert examples.at(0, "joint", 0.26) is None and examples.candidates[
        examples.at(0, "mean", None)
    ] == ("mean", None)


def test_rows_are_the_tensors_with_their_tokens(bert):
    examples = bert[2].examples
    candidate = examples.at(1, "key-pca", 0.1)
    rows = examples.rows(2, 1, candidate)
    assert len(rows) == 24 * 24
    row = rows[5 * 24 + 7]
    assert (row["query"], row["key"]) == (5, 7)
    tokens = examples.tokens[2]["encoder"]
    assert (row["query_token"], row["key_token"]) == (tokens[5], tokens[7])
    assert row["true"] == float(examples.true[2, 1, 5, 7])
    assert row["reconstructed"] == float(examples.estimated[2, 1, candidate, 5, 7])
    assert row["difference"] == pytest.approx(row["reconstructed"] - row["true"])


def test_wrong_indices_are_refused(bert):
    examples = bert[2].examples
    for wrong, says in (
        ({"input": 3}, "no input 3"),
        ({"head": -1}, "no head -1"),
        ({"candidate": 999}, "no candidate 999"),
    ):
        with pytest.raises(el.EigenlensError, match=says):
            examples.rows(**wrong)
