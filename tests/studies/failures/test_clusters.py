"""Whatever happens to a cluster on the way, a study ends with the numbers of the undisturbed
one.
"""

import os
import signal

import pytest

from eigenlens import study
from eigenlens.run.checkpoints import Checkpoints
from eigenlens.run.engine import Local
from eigenlens.run.folding import Fold
from run.processes import Cluster, give_up_soon
from studies.failures.cases import CASES, FINE
from studies.identical import assert_identical, assert_same_tensors
from studies.stages import stage_of


class Stop(Exception):
    """The work ends here."""


def stop_after(number, stage="fit inputs"):
    """A report that ends the work in a stage, when so many inputs are done."""

    def progress(what, done, _total):
        if stage_of(what) == stage and done > number:
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
    assert min(done for what, done in told if stage_of(what) == stage) > (
        18 if stage == "fit inputs" else 88
    ), "from the beginning"
    assert_identical(undisturbed("sketch"), tmp_path / "s")


def test_workers_killed_while_they_work_do_not_change_a_bit(make, undisturbed, of_size, tmp_path):
    """One of two in the first stage, all of them in the last."""
    engine, killed = of_size(2), []

    def progress(what, done, _total):
        victims = {"fit inputs": 1, "held-out inputs": 2}.get(stage_of(what), 0)
        if done and victims and stage_of(what) not in killed:
            killed.append(stage_of(what))
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
        assert last.startswith(
            f"eigenlens: the connection to the scheduler at {cluster.address} is lost; "
        )
        assert "repeat the call with resume=True (--resume) to go on" in last
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
