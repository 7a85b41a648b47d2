"""Workers that die, come late or are lost from sight change no bit of what the engine gives."""

import os
import signal
import threading

from eigenlens.run.cluster import Dask
from eigenlens.run.engine import Local
from run.cluster.folds import TREE, whole, workers_of
from run.jobs import (
    Noted,
    Spelling,
    Together,
    resume_from,
    some_shards,
)
from run.processes import PATIENCE, until


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
