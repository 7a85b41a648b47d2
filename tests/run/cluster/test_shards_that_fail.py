"""A shard that fails ends the run, or is left out; either way it is named."""

import pytest

from eigenlens import EigenlensError
from eigenlens.run.engine import Local
from run.cluster.folds import whole
from run.jobs import (
    STEPS,
    Failing,
    Spelling,
    some_shards,
)


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
        (3, "its worker died each of the 2 times that this shard was tried alone")
    ]
