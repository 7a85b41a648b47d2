"""Rank against number of heads.

The theory against enumeration, the quick run, and a run that is kept.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from eigenlens.papers import rank_versus_heads as rvh
from eigenlens.papers.rank_versus_heads import theory
from eigenlens.papers.rank_versus_heads.claims import claims_of
from printed import check_printed


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rvh") / "run"
    return rvh.paper("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


def test_what_must_hold_holds_in_the_quick_run(done):
    verdicts = {claim.claim: claim.verdict for claim in done[0].claims}
    for claim in (
        "the error falls with the rank at the same rH",
        "one head of full rank finds the nearest point exactly",
        "heads of half the rank do not, with 8 times as many",
    ):
        assert verdicts[claim] == "reproduced", claim
    assert max(row["farthest"] for row in done[0].tables["rank one"]) < 0.05
    assert sum(verdict == "out of reach" for verdict in verdicts.values()) == 2


def test_training_and_truncation_are_measured(done):
    assert [(row["rank"], row["heads"]) for row in done[0].tables["training"]] == [
        (1, 8),
        (4, 2),
        (8, 1),
    ]
    kept = [row["kept"] for row in done[0].tables["truncation"]]
    assert (
        kept[-1] == pytest.approx(1.0, abs=1e-5) and kept[0] < 0.95 and kept[0] < kept[2] < kept[-1]
    )
    assert len(done[0].tables["one head"]) == 72


def test_a_resumed_run_does_nothing_again(done, monkeypatch):
    def again(*_, **__):
        raise AssertionError("measured again")

    for name in ("sweep", "_rank_one", "trained_row", "cut_model"):
        monkeypatch.setattr(rvh, name, again)
    assert rvh.paper("quick", done[1], resume=True).record() == done[0].record()


def test_pictures_are_drawn_of_every_table(done):
    assert set(rvh.paper.charts(done[0].tables)) == {"rank-versus-heads", "rank-one-head"}
    assert all(name in done[0].tables for _, name in rvh.paper.shown)


def test_the_moments_of_rank_one_are_those_of_random_inputs():
    torch.manual_seed(0)
    q, k = (theory.subspaces(4, 1, 5, seed)[..., 0] for seed in (1, 2))
    x, y, target = theory.draw_nearest(200_000, 2, 5, 3)
    z = torch.stack(
        [theory.highest_scored(x, (x @ k[i]) * (y @ q[i])[:, None]) for i in range(4)], 1
    )
    torch.testing.assert_close(
        torch.einsum("bhd,bgd->hg", z, z) / len(z), theory.sphere_moments(q, k), atol=0.01, rtol=0
    )
    same = theory.highest_scored(x, (x @ k[0]) * (y @ k[0])[:, None])
    assert float((same * target).sum(1).mean()) == pytest.approx(theory.agreement(5), abs=0.01)


@pytest.mark.parametrize("d", [3, 8])
def test_agreement_and_limit_are_the_integrals(d):
    """By scipy, over the density (1 − t²)^((d−3)/2) of one coordinate."""
    from scipy.integrate import quad

    density = lambda t: (1 - t * t) ** ((d - 3) / 2)  # noqa: E731
    whole = quad(density, -1, 1)[0]
    b = 0.5 + quad(lambda t: math.asin(abs(t)) * density(t), -1, 1)[0] / whole / math.pi
    C = 0.5 + 2 / math.pi**2 * quad(lambda t: math.asin(t) ** 2 * density(t), -1, 1)[0] / whole
    assert theory.agreement(d) == pytest.approx(b, abs=1e-6)
    assert theory.rank_one_limit(d) == pytest.approx(1 - b * b / C, abs=1e-6)


def test_many_heads_of_rank_one_come_down_to_the_limit_and_not_below():
    errors = [theory.rank_one(8, heads, 0)["theory"] for heads in (1, 8, 64, 512)]
    assert errors == sorted(errors, reverse=True)
    assert theory.rank_one_limit(8) < errors[-1] < theory.rank_one_limit(8) + 0.01


def test_the_fit_is_that_of_numpy():
    z, y = torch.randn(50, 3, 4, dtype=torch.float64), torch.randn(50, 4, dtype=torch.float64)
    a = np.linalg.lstsq(z.permute(0, 2, 1).reshape(-1, 3).numpy(), y.flatten().numpy(), rcond=None)[
        0
    ]
    residual = y.numpy() - np.einsum("h,bhd->bd", a, z.numpy())
    assert theory.fitted_error(z, y, z, y) == pytest.approx((residual**2).sum(1).mean())


def test_hard_heads_look_at_the_largest_product_in_their_subspace():
    x, q, _ = theory.draw_nearest(20, 5, 4, 0)
    bases = theory.subspaces(3, 2, 4, 1)
    found = theory.head_outputs(x, q, bases)
    for b, h in itertools.product(range(20), range(3)):
        P = bases[h] @ bases[h].T
        best = max(range(5), key=lambda i, b=b, P=P: float(q[b] @ P @ x[b, i]))
        assert torch.equal(found[b, h], x[b, best])


def test_claims_can_fail(done):
    tables = {name: [dict(row) for row in rows] for name, rows in done[0].tables.items()}
    for row in tables["least squares"]:
        row["error"] = row["low"] = row["high"] = 0.2
    for row in tables["training"]:
        row["error"] = row["low"] = row["high"] = 0.5
    verdicts = {claim.claim: claim.verdict for claim in claims_of(tables, True)}
    assert verdicts["the error falls with the rank at the same rH"] == "not reproduced"
    assert verdicts["one head of full rank finds the nearest point exactly"] == "not reproduced"
    trained = "trained at d = 8, 1 layer: the error drops from half the rank to the full one"
    assert verdicts[trained] == "not reproduced"
    assert all(c.reason for c in claims_of(tables, True) if c.verdict == "not reproduced")
