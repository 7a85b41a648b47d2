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
    assert "the median head of L0 needs the fewest dimensions (6)" in found
    assert "that of L1 the most (20)" in found
    assert "needs 2 dimensions more than in the sample" in found


def test_a_layer_beyond_what_was_kept():
    found = layers_sentence([*HEADS[:2], head(1, 0, None, 9), head(1, 1, None, 20)])
    assert "that of L1 the most (more than were kept)" in found


def test_a_study_without_spectra():
    assert (
        layers_sentence([{"stack": "encoder", "layer": 0, "head": 0}])
        == "This study has no spectra of heads."
    )


def test_heads():
    found = head_sentences(HEADS)
    assert found[0].startswith(
        "This head needs 4 of 64 dimensions for 90 % of the held-out variance of its rows"
    )
    assert "and 3 in the sample" in found[0]
    assert "needs fewer" in found[0]
    assert "(3 of 4 heads need fewer)" in found[3]
    assert (
        "In the plan its estimator is joint, for 25 % of the work, which moves its patterns by"
        " 0.123 in total variation." in found[3]
    )
    assert "plan" not in found[0]
    [beyond] = head_sentences([head(0, 0, None, 9)])
    assert (
        beyond
        == "This head does not reach 90 % of the held-out variance of its rows with the components"
        " that were kept; 16 components hold 50 %."
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
        "If all heads used one estimator, joint would be best for 25 % of the work: it moves"
    )
    assert "by 0.100 in total variation on average, for 19 % of the work" in found
    assert "(rows-lmmse) moves them by 0.300 for 20 %" in found
    assert found.endswith("With the mean of each key position alone they move by 0.600.")
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
        "adaptive would be best for 30 % of the work: it moves the patterns by 0.100 in total"
        " variation on average, for 22 % of the work" in cheaper
    )


def test_an_estimator_that_takes_far_more_than_the_budget_does_not_win():
    """The nominal budget of an estimator need not be its work."""
    found = curve_sentence(
        plan_of(("rows-lmmse", 0.2, 0.05, 1.2), ("joint", 0.2, 0.1, 0.21), budget=0.2)
    )
    assert (
        "joint would be best for 20 % of the work: it moves the patterns by 0.100 in total"
        " variation on average, for 21 % of the work" in found
    )
    assert "(rows-lmmse) moves them by 0.050 for 120 %, more than exact scores take" in found


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
    assert "by number of attention hops: 50 % with 0, 30 % with 1, 20 % with 2." in found
    assert "Paths with 2 hops are 50 % of all paths and add 20 %." in found


def test_bounds():
    rows = [
        {"max_d": d, "holds": d <= 1.256, "dobrushin": c}
        for d, c in [(1.0, 0.4), (3.0, 0.9), (5.0, 0.8)]
    ]
    found = bounds_sentence(SimpleNamespace(bounds=rows))
    assert "holds in 1 of 3 heads: D is 3 in the median head and at least 1." in found
    assert "is 0.80 in the median head and below 0.5 in 1 of 3 heads." in found
    none = bounds_sentence(
        SimpleNamespace(bounds=[{"max_d": None, "holds": None, "dobrushin": 0.4}])
    )
    assert "does not apply" in none
