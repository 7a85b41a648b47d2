"""Verdicts of the eigen analysis follow from numbers and can go either way."""

import pytest

from eigenlens.papers.eigen_analysis.claims import claims_of
from eigenlens.papers.eigen_analysis.training_table import summary
from eigenlens.stats.intervals import t_interval


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
