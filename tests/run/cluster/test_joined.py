"""A cluster that somebody else started: its memory, its versions, and its end."""

import gc
import os
import threading

import numpy as np
import pytest

from eigenlens import EigenlensError
from eigenlens.run.cluster import Dask
from eigenlens.run.engine import Local
from eigenlens.run.shards import SHARDS_PER_GROUP
from run.cluster.folds import TREE, whole
from run.jobs import (
    Heavy,
    Noted,
    Spelling,
    resume_from,
    some_shards,
)
from run.processes import Cluster, give_up_soon, resident, until


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
            match=r"has eigenlens 0\.0\.0, and this run was started by eigenlens .*; install the same version everywhere",
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
            f"the connection to the scheduler at {joined.address} is lost; if the work has a folder,"
            " what was merged is kept there"
        )
    joined.kill_workers()  # one that has not heard of it yet would go on
    for file in tmp_path.iterdir():
        file.unlink()
    rest = list(engine.fold(job, some_shards(40), resume_from=first))
    assert whole([first, *rest]) == whole(Local().fold(Spelling(), some_shards(40)))
    assert [shard for shard, _ in resume_from(tmp_path)] == list(range(SHARDS_PER_GROUP, 40)), (
        "the merged shards are not run again"
    )
