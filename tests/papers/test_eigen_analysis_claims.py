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


def along(value):
    """A number, or one for each of the four points of a curve."""
    return value if isinstance(value, tuple) else (value,) * 4


def tables(
    share=0.2,
    matrices=0.6,
    seen=0.8,
    inputs=400,
    times_chance=4.0,
    error=0.05,
    best=0.2,
    joint=0.05,
    learned=2.05,
    **options,
):
    """Hand-made tables of one model without a mask, one with, and one to compare with."""
    shares = (0.5, 0.9, 0.95, 0.99)
    row = {"model": "a", "n": 100}
    for at, value in zip(shares, along(share)):
        row |= {f"centred {at:.0%}": 100 * value, f"share of n, {at:.0%}": value}
    whole = {"model": "a", "pairs": 5000, "inputs": inputs, "in the sample": seen}
    ranks = list(zip((1, 4, 8, 16), along(times_chance)))
    kept = {"model": "a", "first quarter": 0.0, "third quarter": 1.0, "best of rank m": best}
    return {
        "dimensions": [row],
        "matrices": [
            {**whole, "components": at, "held out": value}
            for at, value in zip((1, 4, 16, 64), along(matrices))
            if matrices is not None
        ],
        "overlap": [
            {"model": name, "masked": name == "b", "rank": rank, "times chance": value}
            for rank, value in ranks
            for name, value in (("a", value), ("b", 99.0))
        ],
        "between models": [
            {"left": "a", "right": "c", "masked": False, "rank": rank, "times chance": value}
            for rank, value in ranks
        ],
        "reconstruction": [
            {**kept, "share": at, "keys": round(100 * at), "median": value}
            for at, value in zip((0.0625, 0.125, 0.25, 0.5), along(error))
        ],
        "estimators": [
            {
                "model": "a",
                "estimator": name,
                "budget": at,
                "work": at,
                "score_error_median": value,
            }
            for name in ("joint", "adaptive")
            for at, value in zip((0.05, 0.1, 0.25, 0.5), along(joint))
        ],
        "training": summary(*runs(learned, **options)),
    }


def verdicts(**options):
    return [claim.verdict for claim in claims_of(tables(**options))]


BAD = {
    "share": 0.7,
    "matrices": 0.3,
    "seen": 0.4,
    "times_chance": 1.5,
    "error": 0.5,
    "joint": 0.3,
    "learned": 2.5,
}


def test_every_claim_of_the_paper_can_hold_and_can_fail():
    assert verdicts() == ["reproduced"] * 6
    assert verdicts(**BAD) == ["not reproduced"] * 6
    for claim in claims_of(tables(**BAD)):
        assert claim.reason.startswith("the claim: ") and claim.criterion
    assert not any(claim.reason for claim in claims_of(tables()))


def test_claims_without_a_figure_depend_on_where_they_are_asked():
    found = verdicts(
        share=(0.1, 0.7, 0.8, 0.9),
        matrices=(0.1, 0.2, 0.4, 0.6),
        times_chance=(9.0, 5.0, 3.5, 1.5),
        error=(0.5, 0.4, 0.2, 0.05),
        joint=(0.3, 0.2, 0.05, 0.01),
    )
    assert found == ["depends"] * 5 + ["reproduced"]
    row, matrices, layers, *_ = claims_of(
        tables(share=(0.1, 0.7, 0.8, 0.9), times_chance=(9.0, 5.0, 3.5, 1.5))
    )
    assert row.note.startswith(
        "holds at 50 % of the variance (0.1), not at 90 % of the variance (0.7)"
    )
    assert "half of it: a 10; for 90 %: a 70" in row.note and row.measured == 0.7
    assert layers.measured == 5.0 and "not at rank 16 (1.5)" in layers.note
    assert layers.interval is None and "b 99" not in layers.note


def test_the_reason_names_the_scale_or_the_protocol_where_they_are_why():
    """A basis that holds its own inputs and no others is too small a sample; keys that leave what
    the best basis does not were badly chosen.
    """
    matrices = claims_of(tables(matrices=0.3, seen=0.8))[1]
    assert matrices.reason.startswith("the scale: ") and "80 % of the 400 inputs" in matrices.reason
    estimated = claims_of(tables(error=0.5, best=0.05))[4]
    assert estimated.reason.startswith("the protocol: the best 25 components leave 0.050")
    limited = claims_of(tables(error=0.5, best=0.2, joint=0.04))[4]
    assert "the best ones leave 0.200" in limited.reason and "leave 0.040" in limited.reason
    trained = claims_of(tables(learned=2.5), quick=True)[-1]
    assert trained.reason.startswith("the scale: ")


def test_what_cannot_be_judged_is_out_of_reach():
    assert verdicts(inputs=40)[1] == "out of reach"
    assert verdicts(matrices=None)[1] == "out of reach"
    assert verdicts(floor=2.02)[-1] == "out of reach"  # the attention of that model does nothing
    none = {"overlap": [], "between models": [], "reconstruction": [], "estimators": []}
    found = [claim.verdict for claim in claims_of({**tables(), **none})]
    assert found == ["reproduced"] * 2 + ["out of reach"] * 3 + ["reproduced"]


def test_what_is_kept_is_counted_seed_by_seed():
    row = next(r for r in summary(*runs(2.25)) if r["mechanism"] == "interpolated")
    assert row["kept"] == pytest.approx(0.75) and row["kept_low"] == pytest.approx(0.75)
    assert row["attention_cost"] == pytest.approx(0.25) and row["seeds"] == 2
    mean, low, high = t_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx(
        (2, 2 - 4.303 * 3**-0.5, 2 + 4.303 * 3**-0.5), rel=1e-3
    )
    assert t_interval([1.0]) == (1.0, None, None)
