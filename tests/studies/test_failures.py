"""Whatever fails on the way, a study ends with the numbers of the undisturbed one, or with one
sentence that says why not.
"""

import os
import signal

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import eigenlens as el
from eigenlens import EigenlensError, Study, study
from eigenlens.data.inputs import Request, prepare
from eigenlens.run.checkpoints import Checkpoints
from eigenlens.run.cluster import Dask
from eigenlens.run.engine import Local
from eigenlens.run.folding import Fold
from eigenlens.run.shards import PartialFold
from run.processes import Cluster, give_up_soon, until
from studies.identical import assert_identical, assert_same_tensors
from tiny import some_text, tiny_bert, tiny_llama

FINE = {"max_length": 8, "batch_size": 2, "shard_size": 2, "depth_every": 3, "diagnostics_every": 2}
CASES = {
    "gram": ("bert", {"max_inputs": 60, "rank": 16}),
    "sketch": ("bert", {"max_inputs": 110, "rank": 2, "batch_size": 8, "shard_size": 4}),
    "padded": ("bert", {"max_inputs": 24, "rank": 4, "max_length": 16, "padding": True}),
    "before rope": ("llama", {"max_inputs": 40, "rank": 8, "before_rope": True}),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    tiny_bert(folder / "bert")
    tiny_llama(folder / "llama")
    some_text(folder / "a.txt", documents=40)
    return folder


@pytest.fixture(scope="module")
def make(place):
    """A study of one of the cases."""

    def made(case, folder, **more):
        model, options = CASES[case]
        return study(place / model, place / "a.txt", folder, **{**FINE, **options, **more})

    return made


@pytest.fixture(scope="module")
def undisturbed(place, make):
    """The folder of the study of a case that nothing happened to."""
    folders = {}

    def one(case):
        if case not in folders:
            folders[case] = make(case, place / f"undisturbed {case}").folder
        return folders[case]

    return one


@pytest.fixture(scope="module")
def cluster():
    engine = Dask(workers=1)
    with engine.running():  # not in force: without a word of it, this process works
        yield engine


@pytest.fixture
def of_size(cluster):
    """The cluster with another number of workers."""

    def grown(workers):
        cluster._client.cluster.scale(workers)
        until(lambda: len(cluster._client.scheduler_info(n_workers=-1)["workers"]) == workers)
        return cluster

    return grown


@pytest.fixture
def often(monkeypatch):
    """A checkpoint whenever there can be one."""
    monkeypatch.setattr(Checkpoints, "due", lambda _: True)


class Stop(Exception):
    """The work ends here."""


def stop_after(number, stage="fit inputs"):
    """A report that ends the work in a stage, when so many inputs are done."""

    def progress(what, done, _total):
        if what == stage and done > number:
            raise Stop

    return progress


@pytest.mark.parametrize(
    ("workers", "case"),
    [(1, "sketch"), (2, "gram"), (2, "sketch"), (2, "padded"), (2, "before rope"), (3, "sketch")],
)
def test_a_cluster_of_any_size_gives_the_bits_of_this_process(
    make, undisturbed, of_size, tmp_path, workers, case
):
    found = make(case, tmp_path / "s", engine=of_size(workers))
    assert found.stored["options"]["matrices_by"] == ("sketch" if case == "sketch" else "gram")
    assert_identical(undisturbed(case), tmp_path / "s")


@pytest.mark.parametrize(("first", "then"), [("local", "dask"), ("dask", "local")])
@pytest.mark.parametrize("stage", ["fit inputs", "held-out inputs"])
def test_what_one_engine_left_another_goes_on_with(
    make, undisturbed, of_size, often, tmp_path, first, then, stage
):
    engines = {"local": Local(), "dask": of_size(2)}
    after = 44 if stage == "fit inputs" else 90
    with pytest.raises(Stop):
        make("sketch", tmp_path / "s", engine=engines[first], progress=stop_after(after, stage))
    assert list((tmp_path / "s" / "unfinished").glob("checkpoint-*.json"))
    told = []
    progress = lambda what, done, _total: told.append((what, done))  # noqa: E731
    make("sketch", tmp_path / "s", engine=engines[then], resume=True, progress=progress)
    assert min(done for what, done in told if what == stage) > (
        18 if stage == "fit inputs" else 88
    ), "from the beginning"
    assert_identical(undisturbed("sketch"), tmp_path / "s")


def test_workers_killed_while_they_work_do_not_change_a_bit(make, undisturbed, of_size, tmp_path):
    """One of two in the first stage, all of them in the last."""
    engine, killed = of_size(2), []

    def progress(what, done, _total):
        victims = {"fit inputs": 1, "held-out inputs": 2}.get(what, 0)
        if done and victims and what not in killed:
            killed.append(what)
            for process in sorted(engine._client.run(os.getpid).values())[:victims]:
                os.kill(process, signal.SIGKILL)

    make("sketch", tmp_path / "s", engine=engine, progress=progress)
    assert killed == ["fit inputs", "held-out inputs"]
    assert_identical(undisturbed("sketch"), tmp_path / "s")


@pytest.mark.cluster
def test_a_lost_scheduler_ends_the_command_and_another_one_goes_on(
    place, run, undisturbed, often, monkeypatch, tmp_path
):
    begun = []

    def counted(self, shard, *rest, real=Fold._shard):
        begun.append(shard.number)
        give_up_soon(self.client)
        return real(self, shard, *rest)

    monkeypatch.setattr(Fold, "_shard", counted)
    command = [
        "--threads",
        "1",
        "study",
        place / "bert",
        place / "a.txt",
        "-o",
        tmp_path / "s",
        "--only",
        "rows,matrices",
    ]
    command += [
        "--max-length",
        8,
        "--batch-size",
        2,
        "--shard-size",
        2,
        "--max-inputs",
        60,
        "--rank",
        16,
        "--engine",
        "dask",
        "--scheduler",
    ]
    with Cluster(tmp_path / "one") as cluster:

        def save(self, *args, real=Checkpoints.save):
            real(self, *args)
            cluster.kill(cluster.scheduler)

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "save", save)
            ended = run(*command, cluster.address)
        assert ended.code == 2
        last = ended.err.strip().splitlines()[-1]
        assert last.startswith(f"eigenlens: the scheduler at {cluster.address} is lost; ")
        assert "the same call with resume=True (--resume) goes on" in last
    first, begun[:] = sorted(set(begun)), []
    with Cluster(tmp_path / "two") as cluster:
        ended = run(*command, cluster.address, "--resume")
    assert ended.code == 0
    assert min(begun) > first[7], "the group that was merged is not run again"
    made = study(
        place / "bert",
        place / "a.txt",
        tmp_path / "local",
        **{**FINE, **CASES["gram"][1]},
        only=["rows", "matrices"],
    )
    assert_same_tensors(made.folder, tmp_path / "s")


def test_workers_that_do_not_find_the_model_say_so(place, of_size, monkeypatch, tmp_path):
    folder = tiny_bert(tmp_path / "model")

    def gone(self, *args, real=Dask.fold, **more):
        folder.rename(tmp_path / "elsewhere")
        return real(self, *args, **more)

    monkeypatch.setattr(Dask, "fold", gone)
    with pytest.raises(EigenlensError, match=r"shard \d+ \(.*\) failed: .*model"):
        study(folder, place / "a.txt", tmp_path / "s", **FINE, max_inputs=20, engine=of_size(2))


def test_workers_that_find_other_weights_say_so(place, of_size, monkeypatch, tmp_path):
    folder = tiny_bert(tmp_path / "model")

    def changed(self, *args, real=Dask.fold, **more):
        tiny_bert(folder, seed=1)
        return real(self, *args, **more)

    monkeypatch.setattr(Dask, "fold", changed)
    with pytest.raises(EigenlensError, match="has other weights here than where the run was begun"):
        study(folder, place / "a.txt", tmp_path / "s", **FINE, max_inputs=20, engine=of_size(2))


def test_a_module_in_hand_needs_this_process(place, of_size, tmp_path):
    model = BertModel(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
        )
    )
    with pytest.raises(EigenlensError, match=r"was never saved.*save it to a folder"):
        study(
            model,
            torch.randint(50, (20, 8)),
            tmp_path / "s",
            max_length=8,
            max_inputs=20,
            engine=of_size(2),
        )
    assert not (tmp_path / "s").exists()


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


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_second_command_in_the_folder_is_refused(
    place, make, undisturbed, of_size, warm, tmp_path, engine
):
    refused = []

    def progress(_what, done, _total):
        if done and not refused:
            command = ["study", place / "bert", place / "a.txt", "-o", tmp_path / "s"]
            refused.append(warm(*command, "--resume"))

    make(
        "gram",
        tmp_path / "s",
        engine=Local() if engine == "local" else of_size(2),
        progress=progress,
    )
    assert (refused[0].returncode, refused[0].stderr) == (
        2,
        f"eigenlens: another process is at work in {tmp_path / 's'}\n",
    )
    assert_identical(undisturbed("gram"), tmp_path / "s")
