"""Shards that fail once are tried again; those that always fail are left out and named, or end the
command.
"""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import eigenlens as el
from eigenlens import EigenlensError, Study, study
from eigenlens.data.inputs import Request, prepare
from eigenlens.run.engine import Local
from eigenlens.run.shards import PartialFold
from studies.identical import assert_identical, assert_same_tensors

ROWS = 100
BROKEN = {
    "max_length": 6,
    "max_inputs": ROWS,
    "batch_size": 2,
    "shard_size": 3,
    "rank": 8,
    "depth_every": 1,
}
BROKEN["only"] = ["rows", "moments", "matrices", "depth"]


@pytest.fixture(scope="module")
def rows(place):
    """Token ids in rows of which each is a document; the ids of row i are 4 i … 4 i + 3."""
    ids = (
        torch.randint(4, (ROWS, 6), generator=torch.Generator().manual_seed(0))
        + 4 * torch.arange(ROWS)[:, None]
    )
    np.save(place / "rows.npy", ids.numpy())
    return place / "rows.npy"


def handmade(folder, broken=()):
    """A BERT over the ids of all rows; its numbers are not finite for those that are `broken`."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = BertModel(
        BertConfig(vocab_size=4 * ROWS, initializer_range=0.3, **sizes), add_pooling_layer=False
    )
    with torch.no_grad():
        for row in broken:
            # overflows
            model.embeddings.word_embeddings.weight[4 * row : 4 * row + 4] = 3e38 * (
                -1
            ) ** torch.arange(16)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def buckets(place, rows):
    """The rows of every bucket: the fit inputs, then the groups that are held out."""
    model = el.load(handmade(place / "sound"))
    (place / "spool").mkdir()
    ready = prepare(model, Request((str(rows),), max_length=6, max_inputs=ROWS), place / "spool")
    return [ready.documents[ready.buckets == group].tolist() for group in ready.groups]


class Without:
    """Folds what is left when some rows' shards are taken away, in the order of the tree."""

    remote, here, on_failure, threads = False, 0, "stop", 1

    def __init__(self, rows):
        self.names = tuple(f"row {row}" for row in rows)
        self.left_out = []

    def running(self):
        return Local().running()

    def fold(self, job, shard_groups, begun=None, progress=None):
        for number, shards in enumerate(shard_groups):
            lost = [
                shard
                for shard in shards
                if any(name.endswith(self.names) for name in shard.documents)
            ]
            self.left_out += [(shard.number, shard.size, list(shard.documents)) for shard in lost]
            states = [
                job.run(shard.content(), lambda _: None) for shard in shards if shard not in lost
            ]
            total = states[0] if states else None
            for state in states[1:]:
                total = job.merge(total, state)
            yield PartialFold(number, len(shards), True, total)


def broken_rows(buckets, case):
    fit, held = buckets[0], buckets[1:]
    return {
        "one of the first group": [fit[4]],
        "some of all": [fit[4], fit[5], fit[40], held[0][0]],
        "a whole shard group": fit[24:48],
        "a whole group": held[1],
    }[case]


@pytest.mark.parametrize("engine", ["local", "dask"])
@pytest.mark.parametrize(
    "case", ["one of the first group", "some of all", "a whole shard group", "a whole group"]
)
def test_shards_that_always_fail_are_left_out_and_named(
    rows, buckets, place, of_size, tmp_path, engine, case
):
    broken = broken_rows(buckets, case)
    model = handmade(tmp_path / "model", broken)
    chosen = Local("partial")
    if engine == "dask":
        chosen = of_size(2)
        chosen.on_failure = "partial"
    try:
        found = study(model, rows, tmp_path / "s", **BROKEN, engine=chosen)
    finally:
        chosen.on_failure = "stop"
    rest = Without(broken)
    study(place / "sound", rows, tmp_path / "rest", **BROKEN, engine=rest)
    assert_same_tensors(tmp_path / "rest", tmp_path / "s")
    named = sorted(
        (lost["shard"], lost["inputs"], lost["documents"]) for lost in found.stored["partial"]
    )
    assert named == sorted(rest.left_out)
    assert all("are not finite" in lost["error"] for lost in found.stored["partial"])
    assert any("the study is partial" in note and "are not finite" in note for note in found.notes)


@pytest.mark.parametrize(("bucket", "what"), [(0, "fit"), (1, "held-out")])
def test_where_nothing_is_left_there_is_no_study(rows, buckets, tmp_path, bucket, what):
    held = [row for group in buckets[1:] for row in group]
    # some of every shard, and not the first input, which is tried before
    broken = buckets[0][1::2] if bucket == 0 else held
    model = handmade(tmp_path / "model", broken)
    with pytest.raises(
        EigenlensError, match=rf"every shard of the (first )?{what} inputs failed.*are not finite"
    ):
        study(model, rows, tmp_path / "s", **BROKEN, engine=Local("partial"))


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_shard_that_fails_ends_the_command_and_is_tried_again(
    rows, buckets, place, run, of_size, often, tmp_path, engine
):
    """By default the command stops; what is done is kept, and the one that resumes it may choose to
    end partial.
    """
    broken = buckets[0][36]  # of every sixth input metrics along depth are measured, and notice it
    model = handmade(tmp_path / "model", [broken])
    command = [
        "--threads",
        1,
        "study",
        model,
        rows,
        "-o",
        tmp_path / "s",
        "--only",
        ",".join(BROKEN["only"]),
    ]
    command += [
        "--max-length",
        6,
        "--max-inputs",
        ROWS,
        "--batch-size",
        2,
        "--shard-size",
        3,
        "--rank",
        8,
    ]
    if engine == "dask":
        command += ["--engine", "dask", "--scheduler", of_size(2)._client.scheduler.address]
    for more in ([], ["--resume"]):
        ended = run(*command, *more)
        assert ended.code == 2
        assert f"rows.npy, row {broken}" in ended.err
        assert "are not finite" in ended.err
    assert run(*command, "--resume", "--on-failure", "partial").code == 0
    found = Study.open(tmp_path / "s")
    assert len(found.stored["partial"]) == 1
    again = study(
        model, rows, tmp_path / "again", **{**BROKEN, "depth_every": None}, engine=Local("partial")
    )
    assert_same_tensors(again.folder, tmp_path / "s")


def test_a_shard_that_failed_once_is_tried_again_and_leaves_no_trace(
    make, undisturbed, often, monkeypatch, tmp_path
):
    from eigenlens.studies.study_pass import Pass

    calls = []

    def moody(self, content, tick, real=Pass.run):
        calls.append(content)
        if len(calls) == 12:
            raise RuntimeError("not today")
        return real(self, content, tick)

    with monkeypatch.context() as patch:
        patch.setattr(Pass, "run", moody)
        with pytest.raises(
            EigenlensError,
            match=r"shard \d+ \(.* inputs of the document.*\) failed: RuntimeError: not today",
        ):
            make("gram", tmp_path / "s")
    make("gram", tmp_path / "s", resume=True)
    assert_identical(undisturbed("gram"), tmp_path / "s")
