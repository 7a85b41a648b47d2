"""The Dask engine with real processes: the tree of the local engine, whatever dies on the way."""

import gc
import os
import signal
import threading

import dask
import numpy as np
import pytest

from eigenlens import EigenlensError
from eigenlens.run.cluster import Dask
from eigenlens.run.engine import Local
from eigenlens.run.shards import SHARDS_PER_GROUP
from run.jobs import (
    STEPS,
    Failing,
    Heavy,
    Late,
    Noted,
    Spelling,
    Together,
    resume_from,
    some_shards,
)
from run.made import Unread
from run.processes import PATIENCE, Cluster, give_up_soon, resident, until

TREE = "(((((((0 1) 2) 3) 4) 5) 6) 7)"


@pytest.fixture(scope="module")
def engine():
    """Two workers of this machine, with a nanny each; a shard may kill two of them before it is
    given up.
    """
    started = Dask(workers=2)
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), started.running():
        yield started


@pytest.fixture
def partial(engine):
    engine.on_failure = "partial"
    yield engine
    engine.on_failure = "stop"


def workers_of(engine):
    """The processes of the workers."""
    return sorted(engine._client.run(os.getpid, nanny=False).values())


def whole(folds):
    return [at.state for at in folds if at.complete]


def test_the_tree_is_that_of_the_local_engine_whatever_comes_first(engine):
    told = []
    found = list(engine.fold(Late(), some_shards(27), progress=told.append))
    assert whole(found) == whole(Local().fold(Spelling(), some_shards(27)))
    assert [at.group for at in found] == [0, 1, 2, 3]
    assert told[-1] == 27 * STEPS


@pytest.mark.parametrize("stop", [1, 5, 8, 9, 11])
def test_it_goes_on_from_where_the_local_engine_stopped(engine, tmp_path, stop):
    steps = list(Local().fold(Spelling(), some_shards(11)))
    rest = list(
        engine.fold(Noted(folder=str(tmp_path)), some_shards(11), resume_from=steps[stop - 1])
    )
    assert whole([*steps[:stop], *rest]) == whole(steps)
    assert [shard for shard, _ in resume_from(tmp_path)] == list(range(stop, 11)), (
        "what was merged is not run again"
    )


def test_the_local_engine_goes_on_from_where_a_cluster_stopped(engine):
    shards = some_shards(20)
    first = next(iter(engine.fold(Spelling(), shards)))
    told = []
    rest = list(Local().fold(Spelling(), shards, resume_from=first, progress=told.append))
    assert whole([first, *rest]) == whole(Local().fold(Spelling(), shards))
    assert told[0] == (SHARDS_PER_GROUP + 1) * STEPS


def test_progress_comes_from_inside_a_shard(engine, tmp_path):
    (tmp_path / "wait").touch()
    told = []

    def progress(done):
        told.append(done)
        if done:
            (tmp_path / "wait").unlink(missing_ok=True)

    assert whole(engine.fold(Noted(folder=str(tmp_path)), some_shards(1), progress=progress)) == [
        "0"
    ]
    assert STEPS // 2 in told
    assert told[-1] == STEPS


def test_a_worker_killed_in_the_middle_of_a_shard_is_made_up_for(engine, tmp_path):
    (tmp_path / "wait").touch()
    killed = []

    def kill():
        try:
            killed.append(until(lambda: resume_from(tmp_path))[0][1])
            os.kill(killed[0], signal.SIGKILL)
        finally:
            (tmp_path / "wait").unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    found = list(engine.fold(Noted(folder=str(tmp_path)), some_shards(11)))
    killer.join()
    assert whole(found) == [TREE, "((8 9) 10)"]
    run = [shard for shard, _ in resume_from(tmp_path)]
    assert sorted(set(run)) == list(range(11))
    assert len(run) > 11, "what the dead one had begun was begun again"


def test_all_workers_killed_are_made_up_for(engine, tmp_path):
    """In the middle of their shards, with the shards that are done only in their memory."""
    engine._client.wait_for_workers(2, timeout=PATIENCE)  # one was killed before
    (tmp_path / "wait").touch()
    before = workers_of(engine)

    def kill():
        try:
            until(lambda: resume_from(tmp_path))
            for process in before:
                os.kill(process, signal.SIGKILL)
        finally:
            (tmp_path / "wait").unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    found = list(engine.fold(Noted(folder=str(tmp_path)), some_shards(11)))
    killer.join()
    assert whole(found) == [TREE, "((8 9) 10)"]
    assert not set(before) & set(workers_of(engine))


def test_a_shard_that_fails_ends_the_run_and_is_named(engine):
    with pytest.raises(EigenlensError) as told:
        list(engine.fold(Failing(fail=(5,)), some_shards(11)))
    assert (
        str(told.value)
        == "shard 5 (4 inputs of the document document 5) failed: ValueError: 5 is not to my taste"
    )


def test_or_it_is_left_out_and_recorded(partial):
    job, told = Failing(fail=(0, 5, *range(8, 16))), []
    found = list(partial.fold(job, some_shards(19), progress=told.append))
    local = [at for at in Local("partial").fold(job, some_shards(19)) if at.complete]
    assert (
        [at.state for at in found]
        == [at.state for at in local]
        == ["(((((1 2) 3) 4) 6) 7)", None, "((16 17) 18)"]
    )
    assert [sorted(at.failed, key=lambda f: f.shard) for at in found] == [
        list(at.failed) for at in local
    ]
    assert told[-1] == 19 * STEPS


def test_where_a_checkpoint_after_failures_is_gone_on_from_the_count_is_right(partial):
    shards = some_shards(11)
    first = next(iter(partial.fold(Failing(fail=(0, 5)), shards)))
    told = []
    list(Local().fold(Spelling(), shards, resume_from=first, progress=told.append))
    assert told == [9 * STEPS, 10 * STEPS, 11 * STEPS]


def test_a_shard_that_kills_its_worker_each_time_is_named_and_no_other(partial):
    """Dask holds a death against every task that its worker had waiting; only the one that killed
    it is to blame.
    """
    found = list(partial.fold(Failing(die=(3,)), some_shards(11)))
    assert whole(found) == ["((((((0 1) 2) 4) 5) 6) 7)", "((8 9) 10)"]
    assert [(failure.shard, failure.error) for at in found for failure in at.failed] == [
        (3, "its worker died each of the 2 times that it was tried alone")
    ]


def test_the_scheduler_knows_a_bounded_number_of_tasks_and_none_afterwards(engine):
    scheduler = engine._client.cluster.scheduler
    most = {}
    for number in (40, 160):
        known = []
        for _ in engine.fold(Spelling(), some_shards(number)):
            known.append(len(scheduler.tasks))
        most[number] = max(known)
    assert most[160] <= max(most[40], 2 * (2 * 2 + 2 * SHARDS_PER_GROUP) + 2)
    gc.collect()  # an error that was raised may still hold on to some
    until(lambda: not scheduler.tasks)


def test_work_that_cannot_travel_is_refused(engine):
    class Nowhere(Spelling):
        def __reduce__(self):
            raise TypeError("I stay here")

    with pytest.raises(EigenlensError, match="cannot be sent to the cluster of this machine: "):
        list(engine.fold(Nowhere(), some_shards(3)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a number of workers to start here, or the address"),
        (
            {"workers": 1, "scheduler": "tcp://127.0.0.1:1"},
            "a number of workers to start here, or the address",
        ),
        ({"workers": 0}, "at least 1 worker, not 0"),
        ({"workers": 1, "threads": 0}, "at least 1 thread, not 0"),
        ({"workers": 1, "on_failure": "ignore"}, "stop or end partial, not 'ignore'"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(given, message):
    with pytest.raises(EigenlensError, match=message):
        Dask(**given)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense://x", "tcp://not a host:1"])
def test_a_scheduler_that_is_not_there_is_told(address, monkeypatch):
    monkeypatch.setattr("eigenlens.run.cluster.PATIENCE", 12)
    with (
        pytest.raises(EigenlensError, match=f"the scheduler at {address} could not be reached"),
        Dask(scheduler=address),
    ):
        pass


def test_an_engine_that_is_not_running_says_so():
    with pytest.raises(EigenlensError, match="is not running; use it with `with`"):
        list(Dask(workers=1).fold(Spelling(), some_shards(1)))


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A scheduler in a process of its own, to be killed by the last of these tests."""
    with Cluster(tmp_path_factory.mktemp("joined") / "cluster") as cluster:
        yield cluster


def test_memory_of_scheduler_and_client_does_not_grow_with_the_number_of_shards(joined):
    """Eight times the shards, each of a megabyte to the worker and two back."""

    def content(number):
        return np.full(1 << 18, number, np.float32)

    with Dask(scheduler=joined.address) as engine:
        after = {}
        for number in (16, 16, 128):  # the first is to warm up
            total = sum(
                float(at.state["sum"][0])
                for at in engine.fold(Heavy(), some_shards(number, content))
            )
            assert total == sum(range(number))
            gc.collect()
            after[number] = [resident(os.getpid()), resident(joined.scheduler.pid)]
    for few, many in zip(after[16], after[128]):
        assert many - few < 50e6, "112 shards more are 112 MB on their way, and 224 MB of states"


def test_a_worker_with_another_version_is_refused(joined, tmp_path):
    preload = tmp_path / "other.py"
    preload.write_text("from eigenlens import _version\n_version.__version__ = '0.0.0'\n")
    joined.kill_workers()
    joined.add("--preload", preload)
    with (
        Dask(scheduler=joined.address, on_failure="partial") as engine,
        pytest.raises(
            EigenlensError,
            match=r"has eigenlens 0\.0\.0, and this run is of .*; install the same everywhere",
        ),
    ):
        list(engine.fold(Spelling(), some_shards(3)))
    joined.kill_workers()
    joined.add()


def test_workers_of_a_joined_cluster_die_and_others_come_until_the_scheduler_dies(
    engine, joined, tmp_path
):
    job = Noted(folder=str(tmp_path))
    with Dask(scheduler=joined.address) as elsewhere:
        give_up_soon(elsewhere._client)
        (tmp_path / "wait").touch()

        def replace():
            try:
                until(lambda: resume_from(tmp_path))
                joined.kill_workers()
            finally:
                (tmp_path / "wait").unlink()
            joined.add()

        killer = threading.Thread(target=replace)
        killer.start()
        folds = iter(elsewhere.fold(job, some_shards(40)))
        first = next(folds)
        killer.join()
        assert first.state == TREE
        assert len({process for _, process in resume_from(tmp_path)}) == 2
        (tmp_path / "wait").touch()
        joined.kill(joined.scheduler)
        with pytest.raises(EigenlensError) as told:
            list(folds)
        assert str(told.value).startswith(
            f"the scheduler at {joined.address} is lost; what was merged is kept"
        )
    joined.kill_workers()  # one that has not heard of it yet would go on
    for file in tmp_path.iterdir():
        file.unlink()
    rest = list(engine.fold(job, some_shards(40), resume_from=first))
    assert whole([first, *rest]) == whole(Local().fold(Spelling(), some_shards(40)))
    assert [shard for shard, _ in resume_from(tmp_path)] == list(range(SHARDS_PER_GROUP, 40)), (
        "the merged shards are not run again"
    )


def test_a_worker_that_comes_late_takes_over_shards_that_wait(tmp_path):
    started, more = Dask(workers=1), []
    with started.running():

        def progress(done):
            if not more:
                more.append(started._client.cluster.scale(2))

        # what short shards took is no measure of others
        list(started.fold(Spelling(), some_shards(3)))
        assert whole(
            started.fold(Together(folder=str(tmp_path)), some_shards(8), progress=progress)
        ) == [TREE]
    assert not (tmp_path / "alone").exists()
    assert len({process for _, process in resume_from(tmp_path)}) == 2


def test_a_job_that_no_worker_can_read_ends_the_run_and_not_the_workers(engine):
    pids = workers_of(engine)
    with pytest.raises(
        EigenlensError,
        match="the workers of the cluster of this machine cannot do this work: No module named",
    ):
        list(engine.fold(Unread(), some_shards(3)))
    assert workers_of(engine) == pids


def test_a_worker_the_cluster_had_lost_sight_of_ends_nothing():
    started = Dask(workers=2)
    with started.running():
        here = started._client.cluster
        # as when the list of workers is read between a death and the word of it
        here.scheduler_info["workers"].clear()
        os.kill(workers_of(started)[0], signal.SIGKILL)
        assert whole(started.fold(Spelling(), some_shards(3))) == whole(
            Local().fold(Spelling(), some_shards(3))
        )
    assert here.status.name == "closed"
