"""A cluster of two workers for all tests here."""

import dask
import pytest

from eigenlens.run.cluster import Dask


@pytest.fixture(scope="package")
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
