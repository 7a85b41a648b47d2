"""Relevance and the methods beside it, on labelled inputs: stories, planted tokens, gains and
verdicts.
"""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from eigenlens.lab import Transformer
from eigenlens.models.load import load
from eigenlens.papers import PAPERS, Reproduction, explainability
from eigenlens.papers.explainability import tasks
from eigenlens.papers.explainability.claims import claims_of
from eigenlens.papers.explainability.labelled import (
    Labelled,
)
from eigenlens.papers.explainability.planted import (
    AtClassToken,
    Planted,
    planted_run,
    rising_share,
    top_ranked,
)
from eigenlens.papers.explainability.probe import (
    share_right,
)
from eigenlens.papers.explainability.stories import SURE, own_stories
from eigenlens.papers.explainability.tables import area_rows, pair_rows
from eigenlens.run.progress import silent
from eigenlens.stats.intervals import bootstrap_interval
from printed import check_printed
from tiny import of_catalogue


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explainability") / "run"
    return PAPERS["explainability"]("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


@pytest.mark.parametrize(("right", "number"), [(0, 9), (7, 10), (300, 300), (213, 400)])
def test_the_interval_of_a_share_is_wilsons(right, number):
    share, low, high = share_right(right, number)
    theirs = binomtest(right, number).proportion_ci(method="wilson")
    assert (share, low, high) == pytest.approx((right / number, theirs.low, theirs.high), abs=1e-6)


@pytest.mark.download
def test_stories_end_where_the_model_is_sure():
    model = of_catalogue("stories15m")
    found = own_stories(model, 3, 12, 0)
    assert (
        found.batch["input_ids"].shape == (3, 12)
        and (found.batch["input_ids"][:, 0] == model.tokenizer.bos_token_id).all()
    )
    with torch.no_grad():
        for ids, label in zip(found.batch["input_ids"], found.labels):
            p = model.module(input_ids=ids[None]).logits[0, -1].softmax(0)
            assert int(p.argmax()) == int(label) and float(p.max()) >= SURE - 1e-4
    assert found.keep[:, [0, -1]].all() and int(found.keep.sum()) == 6
    assert torch.equal(own_stories(model, 3, 12, 0).batch["input_ids"], found.batch["input_ids"])


def test_the_interval_of_a_mean_is_that_of_its_standard_error():
    x = np.random.default_rng(1).normal(3, 2, 200)
    mean, low, high = bootstrap_interval(x.tolist())
    error = x.std() / math.sqrt(len(x))
    assert mean == pytest.approx(x.mean())
    assert low == pytest.approx(mean - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.1 * error)


def test_gains_are_above_zero_where_the_method_is_better():
    good, bad = (
        {"positive": [0.1, 0.2], "negative": [0.9, 0.8]},
        {"positive": [0.5, 0.3], "negative": [0.6, 0.7]},
    )
    areas = {"relevance": good, "attention": bad}
    found = {"areas": areas, "right": areas}
    rows = {row["order"]: row for row in pair_rows("toy", found, "relevance")}
    assert rows["positive"]["gain"] == pytest.approx(0.25) and rows["negative"][
        "gain"
    ] == pytest.approx(0.2)
    assert all(row["gain"] < 0 for row in pair_rows("toy", found, "attention"))
    assert area_rows("toy", found)[1]["positive"] == pytest.approx(0.4)


@pytest.mark.parametrize("read", ["class token", "mean"])
def test_the_planted_token_is_the_class_and_the_only_one(read):
    task = Planted(read, seed=3)
    tokens, rows = task.test.inputs, torch.arange(len(task.test.inputs))
    assert torch.equal(tokens[rows, task.places], task.labels)
    assert ((tokens < task.classes).sum(1) == 1).all() and (
        tokens[:, 0] == task.vocabulary - 1
    ).all()


def test_a_tie_is_no_first_rank():
    scores, places = torch.tensor([[0.0, 2, 1], [3, 3, 1], [1, 0, 2]]), torch.tensor([1, 0, 2])
    assert top_ranked(scores, places) == pytest.approx(2 / 3)


def test_the_attention_that_relevance_counts_is_that_with_a_rising_score():
    task = Planted("class token", test=20, seed=0)
    model = Transformer(task.config(layers=1, width=16, heads=2)).eval()
    keep = torch.zeros_like(task.test.inputs, dtype=torch.bool)
    asked = Labelled({"inputs": task.test.inputs}, task.labels, keep)
    found = rising_share(load(AtClassToken(model)), asked, task.places, False)
    block, x = model.blocks[0], model.embed(task.test.inputs)
    attention, y = block.attention, block.norm_1(x)
    A = attention.pattern(y).detach().requires_grad_()
    x = x + attention.out((A @ attention.queries_keys_values(y)[2]).transpose(1, 2).flatten(2))
    x = x + block.narrow(block.act(block.wide(block.norm_2(x))))
    p = model.read(model.norm(x))[:, 0].softmax(1).amax(1)
    (slope,) = torch.autograd.grad((p / (1 - p)).log().sum(), A)
    rows = torch.arange(20)
    # (20, H)
    weights, rises = A.detach()[rows, :, 0, task.places], slope[rows, :, 0, task.places] > 0
    assert found == pytest.approx(float((weights * rises).sum() / weights.sum()), abs=1e-5)


@pytest.mark.slow
def test_a_model_that_has_learned_the_planted_token_shows_it_to_its_operator():
    run = planted_run(
        "pre-norm", "class token", layers=1, steps=200, inputs=40, draws=2, seed=0, progress=silent
    )
    assert run["accuracy"] > 0.95 and run["top"]["TensorLens In+Out"] >= 0.95
    mean = {
        name: {order: np.mean(x) for order, x in areas.items()}
        for name, areas in run["areas"].items()
    }
    lens, chance = mean["TensorLens In+Out"], mean["random"]
    assert lens["positive"] < chance["positive"] and chance["negative"] < lens["negative"]
    assert run["top"]["random"] < 0.4


def test_the_quick_run_gives_every_claim_and_the_facts_hold(done):
    run, _ = done
    names = [claim.claim for claim in run.claims]
    assert len(names) == len(set(names)) == 2 + 9 + 6 + 1
    verdicts = {claim.claim: claim.verdict for claim in run.claims}
    assert all(verdicts[name] == "reproduced" for name in names[:2])
    assert verdicts[names[-1]] == "out of reach"
    assert all(claim.criterion and claim.note for claim in run.claims)
    again = Reproduction.from_record(json.loads(json.dumps(run.record(), allow_nan=False)))
    assert again.record() == json.loads(json.dumps(run.record()))
    made = explainability.charts(run.tables)
    assert list(made) == ["deletion", "accuracy", "areas", "planted"] and all(
        chart.to_dict() for chart in made.values()
    )


def test_curves_begin_and_end_alike_for_all_methods(done):
    run, _ = done
    for task in ("reviews", "clothing", "stories"):
        for fraction in (0, 1):
            values = [
                row["probability"]
                for row in run.tables["curves"]
                if (row["task"], row["fraction"]) == (task, fraction)
            ]
            assert len(values) == 20 and max(values) - min(values) < 1e-9
    areas = {row["method"]: row for row in run.tables["areas"] if row["task"] == "reviews"}
    curve = [
        row
        for row in run.tables["curves"]
        if (row["task"], row["method"], row["order"]) == ("reviews", "rollout", "positive")
    ]
    area = np.trapezoid([row["probability"] for row in curve], [row["fraction"] for row in curve])
    assert areas["rollout"]["positive"] == pytest.approx(area)


def test_what_is_finished_is_not_done_again(done, monkeypatch):
    run, folder = done
    for name in ("reviews", "clothing", "stories", "planted_run"):
        monkeypatch.setattr(explainability, name, lambda *_, **__: pytest.fail("done again"))
    monkeypatch.setattr(tasks, "load", lambda *_: pytest.fail("loaded again"))
    assert PAPERS["explainability"]("quick", folder, resume=True).record() == run.record()


def tables_of(gains, lows, off=1e-12, least=0.0):
    """Tables of one task, written by hand; gains and lows most relevant first, then least first."""
    methods = ("relevance", "TensorLens In+Out")
    others = ("attention", "rollout", "Grad-CAM", "attention × gradient", "random")
    return {
        "checks": [
            {"check": "one layer: largest |R − (I + Ā)|", "value": off},
            {"check": "all layers: least entry of R", "value": least},
        ],
        "areas": [
            {"task": "texts", "method": name, "positive": 0.3, "negative": 0.7, "inputs": 50}
            for name in (*methods, *others)
        ],
        "pairs": [
            {
                "task": "texts",
                "method": method,
                "against": other,
                "order": order,
                "gain": gain,
                "low": low,
                "high": gain + 0.1,
            }
            for method in methods
            for other in others
            for order, gain, low in zip(("positive", "negative"), gains, lows)
        ],
    }


@pytest.mark.parametrize(
    ("gains", "lows", "verdict"),
    [
        ((0.2, 0.1), (0.1, 0.01), "reproduced"),
        ((0.2, 0.1), (0.1, -0.01), "depends"),  # one interval reaches 0
        ((0.2, -0.1), (0.1, -0.2), "depends"),  # worse in one order
        ((-0.2, -0.1), (-0.3, -0.2), "not reproduced"),
    ],
)
def test_a_method_is_better_in_both_orders_and_beyond_its_intervals(gains, lows, verdict):
    claims = claims_of(tables_of(gains, lows), False)
    found = {claim.verdict for claim in claims if "better than" in claim.claim}
    assert found == {verdict}
    assert all(bool(claim.reason) == (claim.verdict == "not reproduced") for claim in claims)


def test_the_rules_can_fail_and_other_baselines_are_no_claims():
    claims = {c.claim: c for c in claims_of(tables_of((1, 1), (1, 1), 1e-6, -1e-3), False)}
    assert [claim.verdict for claim in list(claims.values())[:2]] == ["not reproduced"] * 2
    assert not any("random" in name or "attention × gradient" in name for name in claims)
    assert sum("better than" in name for name in claims) == 3 + 2
    assert list(claims.values())[-1].verdict == "out of reach"


def test_relevance_of_planted_tokens_is_the_mean_of_the_seeds(done):
    run, _ = done
    (row,) = (r for r in run.tables["planted relevance"] if r["read"] == "mean")
    own = [
        r
        for r in run.tables["planted"]
        if (r["method"], r["norms"], r["read"]) == ("relevance", row["norms"], "mean")
    ]
    assert row["top-ranked"] == pytest.approx(np.mean([r["top-ranked"] for r in own]))
    assert row["random, negative"] == pytest.approx(np.mean([r["random, negative"] for r in own]))
    assert row["accuracy"] == min(r["accuracy"] for r in own)
