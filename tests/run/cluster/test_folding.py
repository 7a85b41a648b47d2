"""The Dask engine with real processes: the tree of the local engine, in a bounded number of
tasks.
"""

import gc

import pytest

from eigenlens.run.engine import Local
from eigenlens.run.shards import SHARDS_PER_GROUP
from run.cluster.folds import whole
from run.jobs import (
    STEPS,
    Late,
    Noted,
    Spelling,
    resume_from,
    some_shards,
)
from run.processes import until


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


def test_the_scheduler_knows_a_bounded_number_of_tasks_and_none_afterwards(engine):
    scheduler = engine._client.cluster.scheduler
    bound = 2 * (2 * 2 + 2 * SHARDS_PER_GROUP) + 2
    for number in (40, 160):
        for _ in engine.fold(Spelling(), some_shards(number)):
            until(lambda: len(scheduler.tasks) <= bound)  # a busy one forgets a little later
    gc.collect()  # an error that was raised may still hold on to some
    until(lambda: not scheduler.tasks)
