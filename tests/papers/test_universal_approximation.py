"""The construction of universal approximation, measured: rates, bounds, and a run that is kept."""

import math

import pytest
import torch

from eigenlens.papers import universal_approximation as ua
from eigenlens.papers.universal_approximation import errors
from printed import check_printed


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ua") / "run"
    return ua.paper("quick", folder), folder


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


def test_the_mathematical_claims_hold_in_the_quick_run(done):
    verdicts = {claim.claim: claim.verdict for claim in done[0].claims}
    for claim in (
        "a hard ramp is off by half a spacing at most",
        "its error at 9, 17 and 129 anchors",
        "the error falls as 1/p",
        "the error falls as 1/H",
        "β = 2/Δ comes nearer, at 129 anchors",
        "values f(L_k) give f, at the same rate",
        "two layers of attention sort two numbers",
        "one layer of attention and a softmax do the same",
    ):
        assert verdicts[claim] == "reproduced", claim


def test_errors_of_maps_fall_with_the_units_as_those_of_their_networks(done):
    rows = done[0].tables["map errors"]
    for target in ua.TARGETS:
        errors = [row["attention"] for row in rows if row["target"] == target]
        assert errors == sorted(errors, reverse=True) and errors[-1] < 0.15
    assert all(abs(row["attention"] - row["network"]) < 0.02 for row in rows)


def test_a_resumed_run_does_nothing_again(done, monkeypatch):
    def again(*_, **__):
        raise AssertionError("measured again")

    for name in ("ramp_errors", "function_errors", "sort_errors", "sequence_map"):
        monkeypatch.setattr(ua, name, again)
    assert ua.paper("quick", done[1], resume=True).record() == done[0].record()


def test_pictures_are_drawn_of_every_table(done):
    assert set(ua.paper.charts(done[0].tables)) == {"universal-approximation", "sequence-maps"}
    assert all(name in done[0].tables for _, name in ua.paper.shown)


def test_a_hard_ramp_is_off_by_what_rounding_to_anchors_is():
    """Against rounding y to the nearest anchor, which is what hard attention does."""
    y = torch.linspace(-1, 1, 997, dtype=torch.float64)
    rounded = float((torch.round((y + 1) / 0.25) * 0.25 - 1 - y).abs().max())
    (row,) = errors.ramp_errors((9,), (1,), 997)
    assert row["hard"] == pytest.approx(rounded, abs=1e-6)


def test_the_units_of_the_sorter_sort():
    x = torch.tensor([[[0.3], [-0.8]], [[-1.0], [1.0]], [[0.5], [0.5]]], dtype=torch.float64)
    weight, shift, outer = errors.sorter()
    found = [
        [
            sum(
                float(outer[s, 0, m])
                * max(0.0, float((weight[m, :, 0] * pair[:, 0]).sum() + shift[m]))
                for m in range(4)
            )
            for s in range(2)
        ]
        for pair in x
    ]
    assert [value for pair in found for value in pair] == pytest.approx(
        [-0.8, 0.3, -1.0, 1.0, 0.5, 0.5]
    )


def test_a_claim_that_does_not_hold_is_not_reproduced(done):
    tables = {name: [dict(row) for row in rows] for name, rows in done[0].tables.items()}
    for row in tables["anchors"]:
        row["hard"] = 0.3 / math.sqrt(row["intervals"])
    verdicts = {claim.claim: claim.verdict for claim in ua.claims_of(tables, True)}
    assert (
        verdicts["the error falls as 1/p"]
        == verdicts["a hard ramp is off by half a spacing at most"]
        == "not reproduced"
    )
    for row in tables["map errors"]:
        row["attention"] = row["low"] = row["high"] = 0.01
    still = {claim.claim: claim for claim in ua.claims_of(tables, True)}
    claim = still["two layers of attention come near any continuous sequence map"]
    assert claim.verdict == "not reproduced"  # small, and not falling
    assert claim.reason.startswith("the scale: ")
    for at, row in enumerate(tables["map errors"]):
        row["attention"] = 0.04 - 0.001 * at
    found = {claim.claim: claim.verdict for claim in ua.claims_of(tables, True)}
    assert found[claim.claim] == "reproduced"
