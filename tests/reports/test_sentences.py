"""Sentences made from numbers: hand-made inputs with known answers."""

from types import SimpleNamespace

import pytest

from eigenlens.reports.sentences import (
    bounds_sentence,
    curve_sentence,
    head_sentences,
    layers_sentence,
    paths_sentence,
    percent,
)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.256, "26 %"),
        (1.0, "100 %"),
        (0.0512, "5.1 %"),
        (0.0, "0 %"),
        (0.00034, "0.03 %"),
        (1e-9, "less than 0.01 %"),
        (0.0996, "10 %"),
    ],
)
def test_shares(share, words):
    assert percent(share) == words


def head(layer, head, held, inside, **more):
    return {
        "stack": "encoder",
        "layer": layer,
        "head": head,
        "rows_centred_dimensions": 64,
        "rows_centred_held_out_dimension_90": held,
        "rows_centred_dimension_90": inside,
        "rows_centred_held_out_at_16": 0.5,
        **more,
    }


HEADS = [
    head(0, 0, 4, 3),
    head(0, 1, 8, 5),
    head(1, 0, 10, 9),
    head(1, 1, 30, 20, plan_estimator="joint", plan_work=0.25, plan_total_variation=0.1234),
]


def test_layers():
    """Medians of the heads are 6 and 20; the gaps are 1, 3, 1 and 10, their median 2."""
    found = layers_sentence(HEADS)
    assert "L0 is the layer of lowest dimension (6)" in found
    assert "L1 that of highest (20)" in found
    assert "take 2 dimensions more than the sample says" in found


def test_a_layer_beyond_what_was_kept():
    found = layers_sentence([*HEADS[:2], head(1, 0, None, 9), head(1, 1, None, 20)])
    assert "L1 that of highest (beyond what was kept)" in found


def test_a_study_without_spectra():
    assert (
        layers_sentence([{"stack": "encoder", "layer": 0, "head": 0}])
        == "This study holds no spectra of heads."
    )


def test_heads():
    found = head_sentences(HEADS)
    assert found[0].startswith(
        "Needs 4 of 64 dimensions for 90 % of the held-out variance of its rows"
    )
    assert "in the sample 3" in found[0]
    assert "needs fewer" in found[0]
    assert "(3 of 4 heads need fewer)" in found[3]
    assert (
        "The plan gives it joint for 25 % of the work, which loses 0.123 in total variation."
        in found[3]
    )
    assert "plan" not in found[0]
    [beyond] = head_sentences([head(0, 0, None, 9)])
    assert (
        beyond
        == "Does not reach 90 % of the held-out variance of its rows within the spectrum that was"
        " kept; 16 components hold 50 %."
    )


def plan_of(*curve, **target):
    names = ("estimator", "budget", "total_variation", "work")
    return SimpleNamespace(curve=[dict(zip(names, row)) for row in curve], target=target, work=0.3)


def test_budgets():
    """Within the plan's own work the winner, at whatever nominal budget; the paper's estimator and
    the mean.
    """
    curve = [
        ("joint", 0.2, 0.1, 0.19),
        ("rows-lmmse", 0.2, 0.3, 0.2),
        ("joint", 0.5, 0.05, 0.5),
        ("mean", None, 0.6, 0.0),
    ]
    found = curve_sentence(plan_of(*curve, budget=0.25))
    assert found.startswith(
        "For 25 % of the work the best single estimator of all heads is joint, which leaves"
    )
    assert "total variation of 0.100 (19 % of the work)" in found
    assert "(rows-lmmse) leave 0.300 for 20 %" in found
    assert found.endswith("the mean of each key position alone 0.600.")
    assert "rows-lmmse)" not in curve_sentence(plan_of(("rows-lmmse", 0.2, 0.1, 0.2), budget=0.2))
    assert curve_sentence(plan_of(budget=0.2)) == ""
    cheaper = curve_sentence(
        plan_of(
            ("joint", 0.3, 0.2, 0.3),
            ("adaptive", 0.1, 0.1, 0.22),
            ("adaptive", 0.3, 0.01, 0.5),
            budget=0.3,
        )
    )
    assert (
        " is adaptive, which leaves a mean total variation of 0.100 (22 % of the work)" in cheaper
    )


def test_an_estimator_that_takes_far_more_than_the_budget_does_not_win():
    """The nominal budget of an estimator need not be its work."""
    found = curve_sentence(
        plan_of(("rows-lmmse", 0.2, 0.05, 1.2), ("joint", 0.2, 0.1, 0.21), budget=0.2)
    )
    assert " is joint, which leaves a mean total variation of 0.100 (21 % of the work)" in found
    assert "(rows-lmmse) leave 0.050 for 120 %, more than exact scores take" in found


def test_paths():
    rows = [
        {
            "part": "paths",
            "stack": "encoder",
            "attention_hops": hops,
            "mlp_hops": 0,
            "share": share,
            "path_share": paths,
        }
        for hops, share, paths in [(0, 0.5, 0.1), (1, 0.2, 0.3), (1, 0.1, 0.1), (2, 0.2, 0.5)]
    ]
    found = paths_sentence(SimpleNamespace(by="attention", paths=rows))
    assert "by number of attention hops: 50 % over 0, 30 % over 1, 20 % over 2." in found
    assert "Paths of 2 hops are 50 % of all paths and add 20 %." in found


def test_bounds():
    rows = [
        {"max_d": d, "holds": d <= 1.256, "dobrushin": c}
        for d, c in [(1.0, 0.4), (3.0, 0.9), (5.0, 0.8)]
    ]
    found = bounds_sentence(SimpleNamespace(bounds=rows))
    assert "holds in 1 of 3 heads: the median head has D = 3, the least 1." in found
    assert "is 0.80 in the median head; 1 of 3 heads more than halve it" in found
    none = bounds_sentence(
        SimpleNamespace(bounds=[{"max_d": None, "holds": None, "dobrushin": 0.4}])
    )
    assert "does not apply" in none
