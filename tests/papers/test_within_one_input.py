"""Low rank within one input: dense scores beside the tables, the controls, and the verdicts."""

import numpy as np
import pytest
import torch

from eigenlens import capture
from eigenlens.papers import within_one_input as within
from eigenlens.papers.inputs import make_batches
from eigenlens.papers.within_one_input.claims import claims_of
from eigenlens.papers.within_one_input.inputs import controlled
from eigenlens.papers.within_one_input.models import growth_rows
from printed import check_printed
from tiny import of_catalogue

CENTRED = "scores without their row's mean"
SHARES = {"50 %": 0.5, "90 %": 0.9, "95 %": 0.95, "99 %": 0.99}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    of_catalogue("smollm2")
    folder = tmp_path_factory.mktemp("within") / "run"
    return within.paper("quick", folder), folder


def needed(matrix, share):
    held = np.cumsum(np.linalg.svd(matrix, compute_uv=False) ** 2)
    return int(np.argmax(held >= share * held[-1] * (1 - 1e-9))) + 1


def dense(model, batches):
    """Row-centred products of queries and keys by layer, (N, H, T, S), each masked pair too."""
    found = {}
    for batch in batches:
        with torch.no_grad(), capture(model.backbone) as calls:
            model.backbone(**batch)
        for call in calls:
            S = (call.scale * call.q.double() @ call.keys.double().transpose(2, 3)).numpy()
            found.setdefault(call.layer, []).append(S - S.mean(3, keepdims=True))
    return {layer: np.concatenate(parts) for layer, parts in found.items()}


def test_what_is_printed_fits_a_page(done, capsys):
    check_printed(done[0], capsys)


def test_a_resumed_run_does_nothing_again(done, monkeypatch):
    def again(*_, **__):
        raise AssertionError("measured again")

    for name in ("model_rows", "growth_rows"):
        monkeypatch.setattr(within, name, again)
    assert within.paper("quick", done[1], resume=True).record() == done[0].record()


def test_pictures_are_drawn_of_every_table(done):
    drawn = within.paper.charts(done[0].tables)
    assert list(drawn) == ["within-one-input", "within-controls"]
    assert all(chart.to_dict() for chart in drawn.values())
    assert all(name in done[0].tables for _, name in within.paper.shown)


@pytest.mark.parametrize("kind", ["real", "shuffled"])
def test_the_median_head_is_that_of_dense_scores(done, kind):
    model, scale = of_catalogue("minilm"), within.QUICK
    batches = make_batches(model, scale.text, scale.length, scale.inputs, 0, 8)
    generator = torch.Generator().manual_seed(0)
    batches = [controlled(model, batch, kind, generator) for batch in batches]
    found = dense(model, batches)
    row = next(
        row for row in done[0].tables["spectra"] if (row["inputs"], row["of"]) == (kind, CENTRED)
    )
    assert (row["number"], row["heads"], row["d"]) == (8, 72, 32)
    for name, share in SHARES.items():
        heads = [
            sorted(needed(S[n, h], share) for n in range(8))[3]
            for S in found.values()
            for h in range(12)
        ]
        assert row[name] == np.median(heads)
    assert (row["least"], row["most"]) == _ends(found)


def _ends(found):
    heads = [
        sorted(needed(S[n, h], 0.9) for n in range(8))[3] for S in found.values() for h in range(12)
    ]
    return min(heads), max(heads)


def test_growth_is_that_of_inputs_that_end_there():
    """In a causal model the first tokens of a long text are an input of their own."""
    model = of_catalogue("smollm2")
    rows = growth_rows("smollm2", "wikipedia", 64, 3, "real", 0)
    assert [row["tokens"] for row in rows] == [32, 64]
    batches = [
        {"input_ids": batch["input_ids"][:, :32]}
        for batch in make_batches(model, "wikipedia", 64, 3, 0, 1)
    ]
    found = dense(model, batches)
    heads = [
        sorted(needed(S[n, h], 0.9) for n in range(3))[1] for S in found.values() for h in range(9)
    ]
    assert rows[0]["90 %"] == np.median(heads)
    assert (rows[0]["d"], rows[0]["heads"], rows[0]["number"]) == (64, 270, 3)


def test_shuffled_inputs_have_the_same_tokens_and_random_ones_do_not():
    model = of_catalogue("minilm")
    batch = make_batches(model, "python-docs", 32, 3, 0, 3)[0]
    ids = batch["input_ids"]
    for kind in ("shuffled", "random"):
        made = controlled(model, batch, kind, torch.Generator().manual_seed(0))["input_ids"]
        assert torch.equal(made[:, 0], ids[:, 0]) and torch.equal(made[:, -1], ids[:, -1])
        assert made.shape == ids.shape and not torch.equal(made, ids)
        same = torch.equal(made.sort(1).values, ids.sort(1).values)
        assert same == (kind == "shuffled")
    assert controlled(model, batch, "real", torch.Generator()) is batch


def test_shuffled_pictures_have_the_same_patches():
    class Model:
        class config:
            patch_size = 4

    x = torch.randn(2, 3, 8, 12)
    batch = {"pixel_values": x}
    made = controlled(Model, batch, "shuffled", torch.Generator().manual_seed(1))["pixel_values"]

    def patches(one):
        cut = [one[:, r : r + 4, c : c + 4].flatten() for r in (0, 4) for c in (0, 4, 8)]
        return sorted(map(tuple, torch.stack(cut).tolist()))

    assert not torch.equal(made, x)
    assert all(patches(one) == patches(other) for one, other in zip(made, x))
    noise = controlled(Model, batch, "random", torch.Generator().manual_seed(1))["pixel_values"]
    assert noise.shape == x.shape and patches(noise[0]) != patches(x[0])


def test_the_papers_own_models_are_out_of_reach_with_ours_beside(done):
    ranges = done[0].claims[:2]
    assert {claim.verdict for claim in ranges} == {"out of reach"}
    assert [claim.published.split(",")[0] for claim in ranges] == ["2–11", "38–75"]
    assert all(claim.measured and "Mistral-7B" in claim.criterion for claim in ranges)


def changed(tables, inputs, what, **numbers):
    """The tables with other numbers in one row of every model."""
    found = {name: [dict(row) for row in rows] for name, rows in tables.items()}
    for row in found["spectra"]:
        if (row["inputs"], row["of"]) == (inputs, what):
            row |= numbers
    return found


def test_verdicts_follow_the_curve_of_thresholds(done):
    tables = done[0].tables

    def verdicts(tables):
        return [claim.verdict for claim in claims_of(tables, True)[2:4]]

    few = dict(zip(SHARES, (1.0, 2.0, 3.0, 4.0)))
    many = dict(zip(SHARES, (20.0, 25.0, 28.0, 31.0)))
    weights = changed(tables, "none", "weights", **many)
    assert verdicts(changed(weights, "real", CENTRED, **few)) == ["reproduced"] * 2
    assert verdicts(changed(weights, "real", CENTRED, **many)) == ["not reproduced"] * 2
    mixed = {**many, "50 %": 1.0}
    assert verdicts(changed(weights, "real", CENTRED, **mixed)) == ["depends"] * 2
    lost = claims_of(changed(weights, "real", CENTRED, **many), True)[2]
    assert lost.reason.startswith("the claim: ") and "20 components" in lost.reason


def test_growth_can_fail_at_some_lengths(done):
    tables = {name: [dict(row) for row in rows] for name, rows in done[0].tables.items()}
    assert claims_of(tables, True)[-1].verdict == "reproduced"
    last = [row for row in tables["growth"] if row["inputs"] == "real"][-1]
    last["90 %"] = 40.0
    claim = claims_of(tables, True)[-1]
    assert claim.verdict == "depends" and claim.measured == pytest.approx(40 / 64)
