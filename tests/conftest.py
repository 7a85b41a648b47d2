"""Settings for every test.

No hub, one thread a worker, patience with a cluster, the same random numbers.
"""

import contextlib
import os
import sys
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# of the workers that tests start and kill each would load torch and transformers anew; see below
os.environ["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"

import pytest
import torch

import eigenlens as el
import kinds
from eigenlens import cli
from eigenlens.run import cluster as clusters
from tiny import some_text, tiny_bert, tiny_llama

torch.set_num_threads(1)
clusters.PATIENCE = 600  # seconds: on a loaded machine a worker takes long to start

if os.environ.get("EIGENLENS_TEST_FAST"):  # set by `make test-fast`
    os.environ |= kinds.only_the_default_model()


def pytest_configure():
    """Workers that tests start are copies of a process that has the libraries loaded.

    Those of the fixture `cluster` start as they do for users.
    """
    if os.environ.get("EIGENLENS_TEST_FAST"):
        return
    from distributed.utils import get_mp_context

    loaded = ("distributed.nanny", "eigenlens.papers", "transformers.modeling_utils")
    get_mp_context().set_forkserver_preload(list(loaded))


def pytest_collection_modifyitems(items):
    for item in items:
        for kind in set(kinds.kinds_of(item)):
            item.add_marker(kind)
    items[:] = kinds.in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file runs in one process, and so do files that share what takes long to build."""
    from xdist.scheduler import LoadFileScheduling

    class Groups(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return kinds.group_of(nodeid.split("::")[0].removeprefix("tests/"))

    config.option.loadscopereorder = False  # by the number of tests, not by what they take
    return Groups(config, log)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """The folder of a tiny BERT, to be read; a test that writes makes its own by `tiny_bert`."""
    return tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """The folder of a tiny Llama, to be read; a test that writes makes its own by `tiny_llama`."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A file with twelve topics of the Python documentation, to be read."""
    return some_text(tmp_path_factory.mktemp("texts") / "text.txt")


@pytest.fixture(scope="session")
def long_text(tmp_path_factory):
    """The same with thirty topics."""
    return some_text(tmp_path_factory.mktemp("texts") / "text.txt", documents=30)


@pytest.fixture(scope="session")
def planned(tmp_path_factory, bert, long_text):
    """The tiny BERT, a text of which some is left for evaluations, and a plan within 30 % of the
    work, in folders `study` and `plan` of one folder; to be read.
    """
    place = tmp_path_factory.mktemp("planned")
    study = el.study(bert, long_text, place / "study", max_length=24, max_inputs=120, rank=8)
    plan = el.plan(study, budget=0.3, max_inputs=12, output_dir=place / "plan")
    return SimpleNamespace(folder=place, bert=bert, text=long_text, study=study, plan=plan)


@pytest.fixture(scope="session")
def cluster():
    """Two workers, not in force: without a word of them, this process works."""
    import dask

    from eigenlens import Dask

    engine = Dask(workers=2)
    with dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}):
        stack = contextlib.ExitStack()
        stack.enter_context(engine.running())
    with stack:
        yield engine


@pytest.fixture(scope="session")
def warm():
    """The command in a process of its own, without the seconds that Python takes to load it."""
    from warm import Warm

    command = Warm()
    yield command
    command.close()


@pytest.fixture(scope="session")
def browser():
    """The one browser of a process: Playwright has room for no second one beside it."""
    from reports.browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process: `run("show", folder)` gives its code, standard output and
    standard error.
    """

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["eigenlens", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code or 0, out=printed.out, err=printed.err)

    return call
