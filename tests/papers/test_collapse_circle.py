"""The circle.

Trajectories against closed forms, the cubic rate of pure attention, and that a run is resumed and
repeated.
"""

from dataclasses import asdict, replace

import pytest
import torch

from eigenlens.collapses import VARIANTS
from eigenlens.lab import Circle, Transformer
from eigenlens.papers.rank_collapse import circle as collapse_circle
from eigenlens.papers.rank_collapse.circle import SHOWN, circles, orbit_row, stretch
from eigenlens.papers.rank_collapse.training import QUICK
from eigenlens.run.parts import Parts


def test_two_points_that_turn_and_shrink():
    t = torch.arange(21, dtype=torch.float64)
    arc = (0.3 * 0.8**t)[:, None] * torch.stack([(0.2 * t).cos(), (0.2 * t).sin()], 1)
    found = orbit_row(torch.stack([arc, -arc], 1), 0.3, 0.1)
    assert found["left"] is None and found["merged"]
    assert found["turn"] == pytest.approx((2 * t).tolist())  # 0.2 a step where 0.1 was learned
    assert found["radius"] == pytest.approx((0.3 * 0.8**t).tolist())
    assert found["distance"] == pytest.approx((0.6 * 0.8**t).tolist())
    assert not orbit_row(torch.stack([arc, -arc], 1)[:9], 0.3, 0.1)[
        "merged"
    ]  # 0.8⁸ is over a tenth


def test_points_are_stretched_by_the_power_of_their_distance():
    """A map that keeps directions and takes lengths to the power of p stretches by p, the mean of
    both points' alike.
    """
    inputs = Circle(20).train.inputs.double()
    for p in (0.5, 1.0, 3.0):
        assert stretch(
            lambda x, p=p: x * x.norm(dim=2, keepdim=True) ** (p - 1), inputs
        ) == pytest.approx(p, rel=1e-6)
    assert stretch(lambda x: x + 5 - x.mean(1, keepdim=True), inputs) == pytest.approx(1)


def test_a_trajectory_ends_where_a_point_leaves():
    arc = 0.3 * 2.0 ** torch.arange(8, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.0])
    for last in (arc[7], torch.full((2,), torch.nan)):
        path = torch.stack([torch.cat([arc[:7], last[None]]), -arc], 1)
        found = orbit_row(path, 0.3, 0.1)
        assert found["left"] == 4  # 2⁴ radii are the first over ten
        assert (
            len(found["trajectory"])
            == len(found["distance"])
            == len(found["turn"])
            == len(found["radius"])
            == 4
        )


def test_attention_alone_takes_a_distance_to_its_cube_and_a_skip_keeps_it():
    """Where scores are small the difference of two opposing points' patterns goes with the square
    of their distance.
    """
    circle = Circle(50)
    for variant, order in (("SAN", 3), ("SAN+skip", 1)):
        torch.manual_seed(0)
        config = circle.config(
            layers=1, heads=2, width=32, size=0.2, **asdict(replace(VARIANTS[variant], norm=False))
        )
        assert stretch(Transformer(config).double(), circle.train.inputs.double()) == pytest.approx(
            order, abs=0.05
        )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    parts = Parts(tmp_path_factory.mktemp("circle"))
    return parts, circles(QUICK.circles, 1, parts)


def test_the_quick_experiment_has_a_row_for_every_variant(quick):
    assert [row["variant"] for row in quick[1]] == list(SHOWN)
    for row in quick[1]:
        assert row["loss"] < 0.01 * 0.3**2
        assert len(row["distance"]) == (
            QUICK.circles[0].steps + 1 if row["left"] is None else row["left"]
        )
        assert row["trajectory"][0] == [pytest.approx([0.3, 0]), pytest.approx([-0.3, 0])]


def test_a_finished_part_is_not_done_again_and_a_new_one_is_the_same(quick, tmp_path, monkeypatch):
    parts, rows = quick
    assert circles(QUICK.circles, 1, Parts(tmp_path)) == rows
    monkeypatch.setattr(collapse_circle, "train", lambda *_, **__: pytest.fail("it is finished"))
    assert circles(QUICK.circles, 1, parts) == rows
