"""The reproduction of fastmax.

Its miniature runs, its mathematics holds, and its numbers are plain definitions.
"""

import json
import math

import numpy as np
import pytest
import torch

from eigenlens.papers import PAPERS
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.fast import measures as fast_measures
from eigenlens.papers.fast import start_rows, trained_rows
from eigenlens.papers.fast.claims import claims_of
from eigenlens.papers.fast.pictures import mean_curves
from eigenlens.papers.pictures import charts
from printed import check_printed

FACTS = (
    "the factorised form is the formula",
    "so are its gradients",
    "rows sum to one",
    "the rank of A is at most C(D+p, p)",
    "the kernel of second order is positive",
    "the kernel of first order is not, without a normalisation",
    "a normalisation by token keeps the future out",
    "a maximum over all tokens lets it in",
    "p=1: operations grow at most with D^2",
    "p=2: operations grow at most with D^3",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fast") / "run"


@pytest.fixture(scope="module")
def done(folder):
    return PAPERS["fast"]("quick", folder)


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done, capsys)


def test_the_mathematics_is_reproduced(done):
    verdicts = {claim.claim: claim.verdict for claim in done.claims}
    assert {claim: verdicts[claim] for claim in FACTS} == dict.fromkeys(FACTS, "reproduced")
    # start (2) and clock (4): measured, not asserted
    assert len(verdicts) == len(done.claims) == len(FACTS) + 6
    assert "miniature" in done.notes[0]
    again = Reproduction.from_record(json.loads(json.dumps(done.record(), allow_nan=False)))
    assert again.record() == json.loads(json.dumps(done.record()))


def test_a_finished_part_is_not_done_again(done, folder, monkeypatch):
    for name in (
        "agreement",
        "ranks",
        "kernels",
        "starts",
        "random_models",
        "sharpest",
        "leaks",
        "times",
        "operations",
    ):
        monkeypatch.setattr(fast_measures, name, lambda *_: pytest.fail("done again"))
    monkeypatch.setattr(fast_measures, "train", lambda *_, **__: pytest.fail("done again"))
    assert PAPERS["fast"]("quick", folder, resume=True).record() == done.record()


def test_every_picture_is_drawn_of_the_tables(done):
    drawn = charts(done)
    assert list(drawn) == ["time", "training", "entropy"]
    message = json.dumps(drawn["time"].to_dict())
    assert all(kind in message for kind in fast_measures.KINDS)


def test_entropy_is_the_definition():
    A = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    assert fast_measures.entropy(A) == pytest.approx((math.log(2) / math.log(4) + 1) / 2)


def test_the_start_is_measured_as_numpy_does(done):
    rows = {(r["mechanism"], r["tokens"], r["D"]): r for r in done.tables["starts"]}
    q, k, _ = (x[0, 0].double().numpy() for x in fast_measures.vectors(1, 128, 16, 128 + 16))
    q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, k))
    f = 1 + q @ k.T + (q @ k.T) ** 2 / 2
    A = f / f.sum(1, keepdims=True)
    found = rows["fastmax p=2", 128, 16]
    assert found["entropy / ln N"] == pytest.approx(
        -(A * np.log(A)).sum(1).mean() / np.log(128), abs=1e-5
    )
    singular = np.linalg.svd(A, compute_uv=False)
    assert found["s1"] == pytest.approx(singular[0], abs=1e-4)
    assert found["s2 √N"] == pytest.approx(singular[1] * 128**0.5, abs=1e-3)
    assert 1 <= found["stable rank"] <= 128


def test_the_table_of_the_start_holds_means_over_seeds(done):
    row = {"mechanism": "softmax", "D": 4, "tokens": 8, "s1": 1.0, "s2 √N": 2.0, "stable rank": 1.0}
    found = start_rows([{**row, "seed": s, "entropy / ln N": 0.5 + 0.2 * s} for s in (0, 1)])
    assert found == [{**row, "entropy / ln N": 0.6}]
    assert len(done.tables["start"]) == 3 * 3 * 2


def test_with_unit_vectors_the_rank_of_second_order_is_one_less(done):
    """The squares of a unit vector sum to one, which is a monomial, too."""
    for row in done.tables["ranks"]:
        assert row["rank"] == row["bound"] - (row["p"] == 2)


def test_the_most_a_key_gets_is_the_ratio_of_the_kernels_ends(done):
    for row in done.tables["sharpest"]:
        n = row["tokens"]
        assert row["fastmax p=2"] == pytest.approx(2.5 / (2.5 + 0.5 * (n - 1)))
        assert row["fastmax p=1"] == pytest.approx(1.999 / (1.999 + 0.001 * (n - 1)), rel=1e-6)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ({256: 0.9, 1024: 0.8, 4096: 0.5}, "reproduced"),
        ({256: 1.2, 1024: 1.1, 4096: 0.5}, "depends"),
        ({256: 2.0, 1024: 1.5, 4096: 1.2}, "not reproduced"),
    ],
)
def test_faster_is_judged_at_every_length(done, ratios, verdict):
    tables = {name: [dict(row) for row in rows] for name, rows in done.tables.items()}
    for row in tables["times"]:
        row["to softmax"] = ratios[row["tokens"]]
    name = "p=2: faster than torch's softmax attention on this processor"
    found = {claim.claim: claim for claim in claims_of(tables, True)}[name]
    assert found.verdict == verdict and found.measured == ratios[4096]


def test_every_fact_can_fail(done):
    tables = {name: [dict(row) for row in rows] for name, rows in done.tables.items()}
    for row in tables["agreement"]:
        row["outputs"] = row["gradients"] = row["row sums"] = 1e-3
    tables["ranks"][0]["rank"] = 99
    for row in tables["kernels"]:
        row["share negative"], row["least on [−20, 20]"] = 0.0, -1.0
    for row in tables["leaks"]:
        row["moved"] = 0.0 if "maximum" in row["normalisation"] else 0.1
    for row in tables["operations"]:
        row["multiply-adds"] = row["D"] ** 4
    found = {claim.claim: claim for claim in claims_of(tables, True)}
    for name in FACTS:
        assert found[name].verdict == "not reproduced" and found[name].reason, name


def test_training_rows_are_means_over_seeds():
    rows = [
        {
            "task": "sort",
            "mechanism": "softmax",
            "seed": s,
            "step": step,
            "loss": s + step,
            "accuracy": 0.5 + 0.1 * s,
            "entropy / ln N": 0.2 * s if step == 2 else None,
        }
        for s in (0, 1)
        for step in (1, 2)
    ]
    assert trained_rows(rows) == [
        {
            "task": "sort",
            "mechanism": "softmax",
            "loss": 2.5,
            "accuracy": 0.55,
            "entropy / ln N": 0.1,
            "low": 2,
            "high": 3,
            "seeds": 2,
        }
    ]
    assert [row["accuracy"] for row in mean_curves(rows, "sort")] == [0.55, 0.55]
