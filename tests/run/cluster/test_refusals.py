"""What the Dask engine refuses, and how it says so."""

import pytest

from eigenlens import EigenlensError
from eigenlens.run.cluster import Dask
from run.cluster.folds import workers_of
from run.jobs import (
    Spelling,
    some_shards,
)
from run.made import Unread


def test_work_that_cannot_travel_is_refused(engine):
    class Nowhere(Spelling):
        def __reduce__(self):
            raise TypeError("I stay here")

    with pytest.raises(EigenlensError, match="cannot be sent to the cluster of this machine: "):
        list(engine.fold(Nowhere(), some_shards(3)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "the number of workers to start here, or `scheduler`"),
        (
            {"workers": 1, "scheduler": "tcp://127.0.0.1:1"},
            "the number of workers to start here, or `scheduler`",
        ),
        ({"workers": 0}, "at least 1 worker, not 0"),
        ({"workers": 1, "threads": 0}, "at least 1 thread, not 0"),
        ({"workers": 1, "on_failure": "ignore"}, "'stop' or 'partial', not 'ignore'"),
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
    with pytest.raises(EigenlensError, match="is not running; use it in a `with` block"):
        list(Dask(workers=1).fold(Spelling(), some_shards(1)))


def test_a_job_that_no_worker_can_read_ends_the_run_and_not_the_workers(engine):
    pids = workers_of(engine)
    with pytest.raises(
        EigenlensError,
        match="the workers of the cluster of this machine cannot do this work: No module named",
    ):
        list(engine.fold(Unread(), some_shards(3)))
    assert workers_of(engine) == pids
