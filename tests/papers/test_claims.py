"""Verdicts follow from numbers and can go either way; parts of a reproduction are kept and never
mixed up.
"""

import json
from dataclasses import replace

import pytest

from eigenlens.errors import EigenlensError
from eigenlens.papers.claims import Claim, Reproduction
from eigenlens.papers.eigen_analysis.claims import claims_of
from eigenlens.papers.eigen_analysis.training_table import summary
from eigenlens.papers.verdicts import (
    judged,
    judged_along,
    judged_by_seeds,
    judged_if,
    out_of_reach,
)
from eigenlens.run.parts import Parts
from eigenlens.stats.intervals import t_interval
from papers.small_paper import small_paper


@pytest.mark.parametrize(
    ("measured", "bound", "verdict"),
    [
        (0.2, {"at_most": 0.25}, "reproduced"),
        (0.3, {"at_most": 0.25}, "not reproduced"),
        (3.0, {"at_least": 3.0}, "reproduced"),
        (2.9, {"at_least": 3.0}, "not reproduced"),
        (float("nan"), {"at_least": 3.0}, "not reproduced"),
        (float("nan"), {"at_most": 3.0}, "not reproduced"),
    ],
)
def test_a_verdict_is_a_bound_that_is_met_or_not(measured, bound, verdict):
    assert judged("it holds", "stated", measured, None, "", "", **bound).verdict == verdict


def test_other_verdicts_and_bounds_are_refused():
    with pytest.raises(EigenlensError, match="no verdict 'maybe'"):
        Claim("it holds", "stated", 1.0, None, "", "maybe", "")
    with pytest.raises(EigenlensError, match="one bound"):
        judged("it holds", "stated", 1.0, None, "", "", at_most=1.0, at_least=0.0)
    with pytest.raises(EigenlensError, match="begins with one of"):
        Claim("it holds", "stated", 1.0, None, "", "not reproduced", "", "bad luck")


@pytest.mark.parametrize(
    ("curve", "verdict", "words"),
    [
        ((0.1, 0.2), "reproduced", "holds at half (0.1), most (0.2)"),
        ((0.1, 0.9), "depends", "holds at half (0.1), not at most (0.9)"),
        ((0.8, 0.9), "not reproduced", "fails at half (0.8), most (0.9)"),
        ((0.1, float("nan")), "depends", "holds at half (0.1), not at most (nan)"),
    ],
)
def test_a_claim_without_a_figure_is_judged_along_a_curve(curve, verdict, words):
    points = dict(zip(("half", "most"), curve))
    made = judged_along("c", "stated", points, "half", None, "", "", at_most=0.25)
    assert (made.verdict, made.note, made.measured) == (verdict, words, curve[0])


@pytest.mark.parametrize(
    ("published", "verdict"),
    [(0.345, "not reproduced"), (0.364, "reproduced"), (0.4, "reproduced")],
)
def test_one_published_start_is_judged_by_the_range_of_our_seeds(published, verdict):
    made = judged_by_seeds("c", published, (0.364, 0.442, 0.41), "", reason="the claim: it is so")
    assert made.verdict == verdict and made.interval == (0.364, 0.442)
    assert bool(made.reason) == (verdict == "not reproduced")


def test_a_claim_about_what_is_not_here_is_never_judged():
    made = out_of_reach("c", "46 %", "a model of 7 billion parameters", "miniature", measured=0.2)
    assert made.verdict == "out of reach" and "7 billion" in made.criterion


@pytest.mark.parametrize(
    ("holds", "verdict", "reason"),
    [(True, "reproduced", ""), (False, "not reproduced", "the scale: x")],
)
def test_a_criterion_of_several_bounds_keeps_its_reason_where_it_fails(holds, verdict, reason):
    made = judged_if(holds, "c", "0.9 to 1.1", 1.2, None, "crit", "note", reason="the scale: x")
    assert (made.verdict, made.reason, made.criterion) == (verdict, reason, "crit")


def runs(learned, full=2.0, floor=3.0):
    """Two seeds of a training experiment in which the learned interpolation ends at `learned`."""
    rows = []
    for seed, shift in enumerate((0.0, 0.1)):
        for mechanism, protocol, share, loss in (
            ("full", "tuned", 1.0, full),
            ("mean only", "tuned", 0.0, floor),
            ("interpolated", "learned", 0.25, learned),
        ):
            rows.append(
                {
                    "mechanism": mechanism,
                    "protocol": protocol,
                    "share": share,
                    "seed": seed,
                    "loss": loss + shift,
                    "accuracy": 0.5,
                    "attention_multiply_adds": 10 * share,
                    "model_multiply_adds": 90 + 10 * share,
                    "training_flops": 1e9,
                    "seconds": 1.0,
                }
            )
    times = [
        {
            "mechanism": r["mechanism"],
            "share": r["share"],
            "forward_seconds": 0.1,
            "step_seconds": 0.3,
        }
        for r in rows[:3]
    ]
    return rows, times


def tables(
    share=0.2, matrices=0.6, inputs=400, times_chance=4.0, error=0.05, learned=2.05, **options
):
    return {
        "dimensions": [
            {"model": "a", "share of n": share, "of matrices": matrices, "matrices": inputs}
        ],
        "overlap": [
            {"model": "a", "masked": False, "times chance": times_chance},
            {"model": "b", "masked": True, "times chance": 99.0},
        ],
        "between models": [
            {"left": "a", "right": "c", "masked": False, "times chance": times_chance}
        ],
        "reconstruction": [
            {
                "model": "a",
                "share": 0.25,
                "median": error,
                "first quarter": 0.0,
                "third quarter": 1.0,
            }
        ],
        "training": summary(*runs(learned, **options)),
    }


def verdicts(**options):
    return [claim.verdict for claim in claims_of(tables(**options))]


def test_every_claim_of_the_paper_can_hold_and_can_fail():
    assert verdicts() == ["reproduced"] * 6
    bad = {"share": 0.7, "matrices": 0.3, "times_chance": 1.5, "error": 0.5, "learned": 2.5}
    assert verdicts(**bad) == ["not reproduced"] * 6


def test_what_cannot_be_judged_is_out_of_reach():
    assert verdicts(inputs=40)[1] == "out of reach"
    assert verdicts(matrices=None)[1] == "out of reach"
    assert verdicts(floor=2.02)[5] == "out of reach"  # the attention of that model does nothing


def test_what_is_kept_is_counted_seed_by_seed():
    row = next(r for r in summary(*runs(2.25)) if r["mechanism"] == "interpolated")
    assert row["kept"] == pytest.approx(0.75) and row["kept_low"] == pytest.approx(0.75)
    assert row["attention_cost"] == pytest.approx(0.25) and row["seeds"] == 2
    mean, low, high = t_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx(
        (2, 2 - 4.303 * 3**-0.5, 2 + 4.303 * 3**-0.5), rel=1e-3
    )
    assert t_interval([1.0]) == (1.0, None, None)


def test_a_reproduction_is_the_same_after_json(tmp_path):
    done = replace(small_paper()("quick", tmp_path / "run"), title="A <b>paper</b>")
    record = json.loads(json.dumps(done.record()))
    again = Reproduction.from_record(record)
    assert again.claims == done.claims
    assert set(record["claims"][0]) == {
        "claim",
        "published",
        "measured",
        "interval",
        "criterion",
        "verdict",
        "note",
        "reason",
    }
    assert "&lt;b&gt;" in done._repr_html_()


def test_parts_are_kept_and_a_folder_belongs_to_one_request(tmp_path):
    parts = Parts.begin(tmp_path / "r", {"seed": 0})
    assert parts.part("a/b", lambda: {"x": (1, 2)}) == {"x": [1, 2]}
    again = Parts.begin(tmp_path / "r", {"seed": 0}, resume=True)
    assert again.part("a/b", lambda: pytest.fail("it was done")) == {"x": [1, 2]}
    with pytest.raises(EigenlensError, match="already holds"):
        Parts.begin(tmp_path / "r", {"seed": 0})
    with pytest.raises(EigenlensError, match="another seed"):
        Parts.begin(tmp_path / "r", {"seed": 1}, resume=True)
    fresh = Parts.begin(tmp_path / "r", {"seed": 1}, overwrite=True)
    assert not fresh.has("a/b")


def test_a_folder_of_something_else_is_never_emptied(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(EigenlensError, match="not a reproduction"):
        Parts.begin(tmp_path, {"seed": 0}, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()
