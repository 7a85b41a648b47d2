"""A claim without a figure is judged for each way to read it."""

import pytest

from eigenlens.papers.verdicts import judged_along, judged_at


@pytest.mark.parametrize(
    ("half", "most", "verdict", "begin"),
    [
        (True, True, "reproduced", "holds at half, most; five inputs"),
        (True, False, "depends", "holds at half, not at most; five inputs"),
        (False, True, "depends", "holds at most, not at half; five inputs"),
        (False, False, "not reproduced", "fails at half, most; five inputs"),
    ],
)
def test_a_claim_depends_if_it_holds_for_some_readings_alone(half, most, verdict, begin):
    made = judged_at(
        *("c", "stated", 0.4, {"half": half, "most": most}, (0.1, 0.5)),
        *("holds where it is above", "five inputs"),
        reason="the claim: it is so",
    )
    assert (made.verdict, made.note, made.measured) == (verdict, begin, 0.4)
    assert bool(made.reason) == (verdict == "not reproduced")


def test_points_of_a_curve_are_readings_with_their_values():
    curve = {"half": 0.1, "most": 0.9}
    along = judged_along("c", "stated", curve, "half", None, "least", "", at_least=0.5)
    points = {"half (0.1)": False, "most (0.9)": True}
    assert along == judged_at("c", "stated", 0.1, points, None, "least", "")
