"""Induction heads.

The quick run end to end, its tables against definitions, and verdicts that follow from the numbers.
"""

import json

import pytest
import torch

from eigenlens import load
from eigenlens.captures import Head
from eigenlens.diagnostics.induction import Induction
from eigenlens.papers import PAPERS
from eigenlens.papers import induction as module
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.induction.claims import claims_of
from eigenlens.papers.induction.dynamics import PUBLISHED, curve, other_parent_rows, stages, table
from eigenlens.papers.induction.heads import handmade_scores, probe_model
from printed import check_printed
from tiny import small_llama


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("induction") / "run"
    return PAPERS["induction"]("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


def verdicts(run):
    return {claim.claim: claim.verdict for claim in run.claims}


def test_the_quick_run_gives_every_claim_and_the_facts_hold(done):
    run, _ = done
    found = verdicts(run)
    assert len(found) == len(run.claims) == 20
    for name in (
        "detector: a perfect head",
        "detector: uniform attention",
        "the share of the true parents at epoch 100",
        "the true parents are selected early",
        "the true parents win, whichever they are",
        "all at once: the set of parents is selected first",
        "trained models that guess the next token have induction heads",
        "previous-token heads come in layers before induction heads",
    ):
        assert found[name] == "reproduced", name
    for row in run.tables["epochs"]:
        if row["epoch"] in PUBLISHED:
            kept = run.tables["runs"][row["seed"]]
            assert kept[f"p at {row['epoch']}"] == row["p"]
            assert kept[f"a at {row['epoch']}"] == row["a"]
    rows = {row["model"]: row for row in run.tables["models"]}
    assert rows["minilm"]["induction heads"] == 0 < rows["smollm2"]["induction heads"]
    # where tokens come only once no head has the stripe
    assert all(row["largest prefix, once"] < 0.07 for row in rows.values())
    # tokens that do not depend on the past teach nothing
    control = next(row for row in run.tables["others"] if row["true parents"] == "none")
    assert abs(control["a"]) < 0.1
    again = Reproduction.from_record(json.loads(json.dumps(run.record(), allow_nan=False)))
    assert again.record() == json.loads(json.dumps(run.record()))
    pictures = module.charts(run.tables)
    assert set(pictures) == {"training", "heads", "ablation"} and all(
        chart.to_dict() for chart in pictures.values()
    )


def test_what_is_finished_is_not_done_again(done, monkeypatch):
    run, folder = done
    for name in ("curve", "readings", "stages", "other_parent_rows", "model_heads"):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("done again"))
    assert PAPERS["induction"]("quick", folder, resume=True).record() == run.record()


def test_verdicts_follow_from_the_numbers(done):
    run, _ = done
    tables = {name: [dict(row) for row in rows] for name, rows in run.tables.items()}
    for row in tables["runs"]:
        row["p > .99"], row["p"] = 21, 100
    for row in tables["models"]:
        row["induction heads"] = 0
    for row in tables["order"]:
        row["first previous-token layer"] = row["first induction layer"]
    for row in tables["ablation"]:
        row["prefix of induction heads"] = 0.5
    found = {claim.claim: claim for claim in claims_of(tables, True)}
    for name in (
        "the true parents are selected early",
        "all at once: the set of parents is selected first",
        "trained models that guess the next token have induction heads",
        "previous-token heads come in layers before induction heads",
        "smollm2: induction needs the previous-token heads before it",
    ):
        assert found[name].verdict == "not reproduced" and found[name].reason, name


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(4.1, 4.2749, "not reproduced"), (4.1, 4.2751, "reproduced"), (4.29, 4.5, "not reproduced")],
)
def test_the_range_of_the_seeds_judges_as_many_digits_as_were_published(done, low, high, verdict):
    tables = {name: [dict(row) for row in rows] for name, rows in done[0].tables.items()}
    tables["runs"][0]["a at 100"], tables["runs"][1]["a at 100"] = low, high
    found = {claim.claim: claim for claim in claims_of(tables, True)}["a at epoch 100"]
    assert found.verdict == verdict and found.published == "4.28"


def test_a_model_without_induction_is_named_and_an_encoder_is_not_asked(done):
    tables = {name: [dict(row) for row in rows] for name, rows in done[0].tables.items()}
    smollm2 = next(row for row in tables["models"] if row["model"] == "smollm2")
    tables["models"].append({**smollm2, "model": "tiny", "induction heads": 0})
    name = "trained models that guess the next token have induction heads"
    found = {claim.claim: claim for claim in claims_of(tables, True)}[name]
    assert found.verdict == "depends" and "not at tiny" in found.note
    tables["models"] = [row for row in tables["models"] if row["model"] == "minilm"]
    assert name not in {claim.claim for claim in claims_of(tables, True)}


def test_the_table_is_mean_least_and_largest_of_the_seeds():
    runs = [curve(300, seed, 12) for seed in (0, 1)]
    rows = table(runs)
    assert [row["epoch"] for row in rows] == [3, 10]
    for row in rows:
        values = [run["rows"][row["epoch"]]["a"] for run in runs]
        assert row["a"] == pytest.approx(sum(values) / 2) and (row["a low"], row["a high"]) == (
            min(values),
            max(values),
        )
        assert (row["published p"], row["published a"]) == PUBLISHED[row["epoch"]]
    for run in runs:
        after = [row["p"] for row in run["rows"] if row["epoch"] >= run["p > .99"]]
        assert all(p > 0.99 for p in after) and run["rows"][run["p > .99"] - 1]["p"] <= 0.99


def test_each_stage_moves_its_own_number_alone():
    c, W, a = stages(300, 0, 10)
    assert (c["learns"], W["learns"], a["learns"]) == ("c", "W", "a")
    assert (
        c["copies"] == pytest.approx(0.9008, abs=1e-3) and c["a"] == W["a"] == 0.01 and c["p"] > 0.9
    )
    assert (
        W["p"] == c["p"] and W["copies"] > c["copies"] and a["copies"] == W["copies"] and a["a"] > 1
    )


def test_other_parents_and_none():
    rows = {row["true parents"]: row for row in other_parent_rows(500, 0, 40)}
    assert len(rows) == 7
    assert all(
        row["largest p"] == name and row["p of the true"] > 0.95
        for name, row in rows.items()
        if name != "none"
    )
    assert abs(rows["none"]["a"]) < 0.1 and rows["−1, −2"]["off"] < rows["−1, −2"]["off at first"]


def test_heads_made_by_hand_do_one_thing_each():
    rows = {row["head"]: row for row in handmade_scores()}
    for name, score in (
        ("perfect induction", "prefix"),
        ("duplicate token", "duplicate"),
        ("previous token", "previous"),
    ):
        assert rows[name][score] == 1.0
    assert rows["perfect induction"]["stripe"] == 1.0
    assert rows["uniform, causal"]["stripe"] == pytest.approx(
        sum(1 / t for t in range(50, 101)) / 51
    )


def test_a_head_that_is_left_out_writes_nothing():
    """Zeroed outputs are those of a model whose output projection has no columns for the head."""
    model = load(small_llama())
    settings = {"block": 10, "inputs": 2}
    whole, without = (
        probe_model(model, Induction(**settings)),
        probe_model(model, Induction(**settings), [Head("self", 0, 1)]),
    )
    projection = model.backbone.layers[0].self_attn.o_proj.weight
    D = projection.shape[1] // 4
    with torch.no_grad():
        kept = projection[:, D : 2 * D].clone()
        projection[:, D : 2 * D] = 0
        by_weights = probe_model(model, Induction(**settings))
        projection[:, D : 2 * D] = kept
    for score in whole.words:
        assert without.values(score) == pytest.approx(by_weights.values(score), abs=1e-6)
    assert without.values("prefix") != pytest.approx(whole.values("prefix"), abs=1e-9)
    first = {place: value for place, value in whole.values("prefix").items() if place.layer == 0}
    assert {place: without.values("prefix")[place] for place in first} == pytest.approx(first)
