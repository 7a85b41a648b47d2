"""A collapse run: its curves against plain numpy, and what it keeps."""

import json

import numpy as np
import pytest
import torch

import eigenlens as el
from collapses.small_runs import SMALL
from eigenlens import EigenlensError
from eigenlens.collapses import ABLATIONS, VARIANTS
from eigenlens.data.inputs import Request, prepare


@pytest.fixture(scope="module")
def run(world, tmp_path_factory):
    model, text = world
    return el.collapse(model, text, tmp_path_factory.mktemp("run") / "run", **SMALL)


def residual(X):
    """‖X − 1x̄ᵀ‖ / ‖X‖ in the composite norm, by the definition."""

    def norm(A):
        return np.sqrt(np.abs(A).sum(0).max() * np.abs(A).sum(1).max())

    return norm(X - X.mean(0)) / norm(X)


def streams(model, text, tmp_path, switches):
    """What goes into the first block and comes out of each, of every input, by transformers' own
    hidden states.
    """
    loaded = el.load(model)
    inputs = prepare(loaded, Request((str(text),), 16, 6, 0.2, 0), tmp_path)
    found = []
    for group in inputs.groups:
        for _, batch in inputs.batches(group, 1):
            with torch.no_grad(), el.ablate(loaded, switches):
                states = loaded.backbone(**batch, output_hidden_states=True).hidden_states
            found.append([state[0].double().numpy() for state in states])
    return found


def test_runs_of_older_versions_are_still_read(run, tmp_path):
    """They say neither in which precision they ran nor what is below rounding."""
    content = json.loads(json.dumps(run.record()))
    del content["facts"]["precision"]
    for rows in (
        *content["curves"].values(),
        content["paths"]["lengths"],
        content["paths"]["single"],
    ):
        for row in rows:
            del row["below_rounding"]
    (tmp_path / "collapse.json").write_text(json.dumps(content))
    again = el.Collapse.open(tmp_path)
    assert again.floor == 8 * np.finfo(np.float32).eps and again.sentence == run.sentence
    assert again.record()["curves"] == json.loads(json.dumps(run.record()))["curves"]


@pytest.mark.parametrize("name", ABLATIONS)
def test_curves_are_the_mean_residual_over_inputs(run, world, tmp_path, name):
    by_hand = np.array(
        [[residual(X) for X in states] for states in streams(*world, tmp_path, ABLATIONS[name])]
    )
    curve = run.curves[name].curve("residual")
    assert [point["number"] for point in curve] == [6, 6, 6]
    np.testing.assert_allclose([point["mean"] for point in curve], by_hand.mean(0), rtol=1e-4)
    error = by_hand[:, -1].std(ddof=1) / np.sqrt(6)
    # Student's t, 5 degrees
    assert curve[-1]["high"] - curve[-1]["mean"] == pytest.approx(2.5705818 * error, rel=1e-3)


def test_the_paper_s_four_variants_are_among_the_ablations(run):
    assert set(VARIANTS) == {"SAN", "SAN+MLP", "SAN+skip", "full"} <= set(run.curves)


def test_paths_add_up_to_the_output(run):
    assert run.error < 1e-4
    assert sum(row["share"] for row in run.paths) == pytest.approx(1, abs=1e-4)
    assert [row["paths"] for row in run.paths[:-1]] == [1, 4, 4]
    shares = {row["attention_hops"]: row["share"] for row in run.paths}
    for hops in (1, 2):  # every path of k hops goes through k heads
        assert sum(row["by_length"][hops] for row in run.heads) == pytest.approx(
            hops * shares[hops], abs=1e-4
        )


def test_bounds_are_of_every_head_and_not_exceeded(run):
    assert [(row["layer"], row["head"]) for row in run.bounds] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(
        row["violated"] == 0 and row["max_d"] > 0 and 0 <= row["dobrushin"] <= 1
        for row in run.bounds
    )
    assert [row["depth"] for row in run.depth_bounds] == [0, 1, 2]


def test_a_finished_run_is_opened_and_never_overwritten_unasked(world, tmp_path, run):
    model, text = world
    again = el.collapse(model, text, tmp_path / "run", **SMALL)
    # the same command gives the same numbers
    assert again.record()["curves"] == run.record()["curves"]
    assert el.Collapse.open(tmp_path / "run").record() == again.record()
    for part, key, told in (
        ("facts", "float64", "lack float64"),
        ("bounds", "heads", "its bounds are not complete"),
    ):
        content = json.loads((tmp_path / "run" / "collapse.json").read_text())
        del content[part][key]
        (tmp_path / "damaged").mkdir(exist_ok=True)
        (tmp_path / "damaged" / "collapse.json").write_text(json.dumps(content))
        with pytest.raises(EigenlensError, match=told):
            el.Collapse.open(tmp_path / "damaged")
    with pytest.raises(EigenlensError, match="already holds a collapse run"):
        el.collapse(model, text, tmp_path / "run", **SMALL)
    with pytest.raises(EigenlensError, match=r"another fingerprint, max_inputs \(--max-inputs\);"):
        el.collapse(model, text, tmp_path / "run", **{**SMALL, "max_inputs": 5}, resume=True)


def test_a_run_that_was_cut_short_goes_on(world, tmp_path, run, monkeypatch):
    model, text = world
    from eigenlens.collapses import run_collapse as make

    monkeypatch.setattr(
        make.CollapseRun, "paths", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        el.collapse(model, text, tmp_path / "run", **SMALL)
    monkeypatch.undo()
    with pytest.raises(EigenlensError, match="no finished collapse run"):
        el.Collapse.open(tmp_path / "run")
    monkeypatch.setattr(
        make.CollapseRun, "curves", lambda *_: pytest.fail("a finished part was done again")
    )
    whole = el.collapse(model, text, tmp_path / "run", **SMALL, resume=True)
    assert whole.record()["curves"] == run.record()["curves"]
    assert whole.record()["paths"] == run.record()["paths"]
