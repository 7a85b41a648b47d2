"""Undisturbed studies to compare with, and a cluster of any size."""

import pytest

from eigenlens import study
from eigenlens.run.checkpoints import Checkpoints
from eigenlens.run.cluster import Dask
from run.processes import until
from studies.failures.cases import CASES, FINE
from tiny import some_text, tiny_bert, tiny_llama


@pytest.fixture(scope="package")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    tiny_bert(folder / "bert")
    tiny_llama(folder / "llama")
    some_text(folder / "a.txt", documents=40)
    return folder


@pytest.fixture(scope="package")
def make(place):
    """A study of one of the cases."""

    def made(case, folder, **more):
        model, options = CASES[case]
        return study(place / model, place / "a.txt", folder, **{**FINE, **options, **more})

    return made


@pytest.fixture(scope="package")
def undisturbed(place, make):
    """The folder of the study of a case that nothing happened to."""
    folders = {}

    def one(case):
        if case not in folders:
            folders[case] = make(case, place / f"undisturbed {case}").folder
        return folders[case]

    return one


@pytest.fixture(scope="package")
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
