"""A collapse run on a cluster.

The numbers of the local engine to the last bit, and what is said where shards fail.
"""

import json

import numpy as np
import pytest
import torch

import eigenlens as el
from eigenlens.collapses import measure, passes
from eigenlens.run.files import locked
from tiny import small_bert

ASKED = {
    "max_inputs": 44,
    "max_length": 16,
    "paths": 5,
    "bounds": 2,
    "variants": ["SAN", "without norm"],
}


@pytest.fixture(scope="module")
def world(bert, long_text):
    return bert, long_text


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Four inputs a shard, so that there are more shards than in a group."""
    monkeypatch.setattr(measure, "TOKENS", 64)


@pytest.fixture(scope="module")
def whole(world):
    """All in this process."""
    before, measure.TOKENS = measure.TOKENS, 64
    try:
        return el.collapse(*world, **ASKED, engine=el.Local()).record()
    finally:
        measure.TOKENS = before


def found(record):
    return {part: record[part] for part in ("curves", "paths", "bounds")}


def test_a_cluster_gives_the_numbers_of_this_process_to_the_last_bit(world, cluster, whole):
    messages = []
    made = el.collapse(
        *world, **ASKED, engine=cluster, progress=lambda *message: messages.append(message)
    )
    assert found(made.record()) == found(whole)
    assert made.record()["sentence"] == whole["sentence"] and made.notes == ()
    assert {what: (done, total) for what, done, total in messages} == {
        "running 44 texts through the full model": (44, 44),
        "running 44 texts through pure attention (SAN)": (44, 44),
        "running 44 texts through the model without norm": (44, 44),
        "splitting the output of 5 texts into paths": (5, 5),
        "computing bounds on 2 texts": (2, 2),
    }


def test_in_double_too(world, cluster):
    asked = {**ASKED, "variants": ["SAN"], "float64": True, "paths": 1, "bounds": 1}
    there = el.collapse(*world, **asked, engine=cluster)
    assert found(there.record()) == found(el.collapse(*world, **asked, engine=el.Local()).record())


def test_shards_make_no_difference_beyond_rounding(world, whole, monkeypatch):
    monkeypatch.setattr(measure, "TOKENS", 10_000)
    at_once = el.collapse(*world, **{**ASKED, "paths": 0, "bounds": 0}, engine=el.Local()).record()
    for name, rows in at_once["curves"].items():
        for row, other in zip(rows, whole["curves"][name], strict=True):
            assert row["number"] == other["number"] == 44
            np.testing.assert_allclose(row["mean"], other["mean"], rtol=1e-4, atol=1e-6)


def test_a_module_in_hand_is_refused_before_a_cluster_is_started(monkeypatch):
    engine = el.Dask(workers=2)
    monkeypatch.setattr(el.Dask, "running", lambda _: pytest.fail("a cluster was started"))
    with pytest.raises(el.EigenlensError, match="BertModel was never saved"):
        el.collapse(small_bert(), np.full((4, 8), 7), max_length=8, max_inputs=4, engine=engine)


def test_a_cluster_that_cannot_be_had_leaves_no_folder(world, monkeypatch, tmp_path):
    monkeypatch.setattr("eigenlens.run.cluster.PATIENCE", 12)
    with pytest.raises(el.EigenlensError, match="could not be reached"):
        el.collapse(*world, tmp_path / "run", **ASKED, engine=el.Dask(scheduler="nowhere"))
    assert not (tmp_path / "run").exists()


def failing(monkeypatch, job, at):
    """The shards of a job that begin at these inputs fail."""
    run = job.run

    def fails(self, content, tick):
        if content.first in at:
            raise ValueError("no")
        return run(self, content, tick)

    monkeypatch.setattr(job, "run", fails)


def test_a_shard_that_fails_ends_the_run_and_is_named(world, monkeypatch, tmp_path):
    failing(monkeypatch, passes.PathPass, {3})
    with pytest.raises(
        el.EigenlensError, match=r"^shard 3 \(1 input of the document .*\) failed: ValueError: no$"
    ):
        el.collapse(*world, tmp_path / "run", **ASKED, engine=el.Local())
    monkeypatch.undo()
    monkeypatch.setattr(measure, "TOKENS", 64)
    monkeypatch.setattr(
        passes.CurvePass, "run", lambda *_: pytest.fail("a finished part was done again")
    )
    assert (
        el.collapse(*world, tmp_path / "run", **ASKED, engine=el.Local(), resume=True).error < 1e-4
    )


def test_or_it_is_missing_and_a_note_says_so_also_when_the_run_goes_on(
    world, whole, monkeypatch, tmp_path
):
    failing(monkeypatch, passes.CurvePass, {0})
    failing(monkeypatch, passes.BoundPass, {0, 1})
    run = el.collapse(*world, tmp_path / "run", **ASKED, engine=el.Local("partial"))
    numbers = {row["number"] for row in run.record()["curves"]["SAN"]}
    assert len(numbers) == 1 and 0 < 44 - numbers.pop() <= 8
    notes = run.notes
    message = "what was found of {} is partial: 1 shard with"
    assert [
        message.format(name) in note for name, note in zip(("full", "SAN", "without norm"), notes)
    ] == [True] * 3
    assert notes[0].endswith("with: ValueError: no")
    # nothing came through
    assert notes[3] == "bounds left out: ValueError: no" and run.bounds == []
    assert run.record()["paths"] == whole["paths"]
    again = el.collapse(*world, tmp_path / "run", **ASKED, engine=el.Local("partial"), resume=True)
    assert again.notes == notes


def test_two_processes_do_not_share_a_folder_and_a_run_keeps_its_threads(world, tmp_path):
    few = {**ASKED, "variants": [], "paths": 0, "bounds": 0}
    el.collapse(*world, tmp_path / "run", **few)
    for how in ({"resume": True}, {"overwrite": True}):
        with (
            locked(tmp_path / "run"),
            pytest.raises(el.EigenlensError, match="another process is working in"),
        ):
            el.collapse(*world, tmp_path / "run", **few, **how)
    assert (tmp_path / "run" / "collapse.json").is_file()  # nothing was removed
    torch.set_num_threads(2)
    try:
        with pytest.raises(el.EigenlensError, match="begun with another threads"):
            el.collapse(*world, tmp_path / "run", **few, resume=True)
    finally:
        torch.set_num_threads(1)
    el.collapse(*world, tmp_path / "run", **few, overwrite=True)


def test_the_command_joins_a_cluster(world, cluster, whole, tmp_path, run):
    model, text = world
    asked = (
        "--max-inputs",
        44,
        "--max-length",
        16,
        "--paths",
        0,
        "--bounds",
        0,
        "--variants",
        "SAN",
        "--json",
    )
    join = ("--engine", "dask", "--scheduler", cluster._client.scheduler.address)
    ended = run("collapse", model, text, "-o", tmp_path / "run", *asked, *join)
    assert ended.code == 0, ended.err
    curves = json.loads(ended.out)["curves"]
    assert curves == json.loads(
        json.dumps({name: whole["curves"][name] for name in ("full", "SAN")})
    )
    ended = run("collapse", model, text, "-o", tmp_path / "none", "--workers", 2)
    assert ended.code == 2 and "add --engine dask" in ended.err
