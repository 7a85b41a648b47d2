"""The kinds of tests: the tables name files that are there, and `make test-fast` cannot fetch what
it promises not to.
"""

from itertools import chain
from types import SimpleNamespace

import pytest

import kinds
from eigenlens.data import datasets
from eigenlens.models import catalogue
from eigenlens.models.catalogue import DEFAULT_MODEL, MODELS


def test_every_file_of_the_tables_is_there():
    named = {*chain(*kinds.BY_FILE.values(), *kinds.TOGETHER.values(), kinds.LONG)}
    assert not [file for file in sorted(named) if not (kinds.TESTS / file).is_file()]


def item(file, fixtures=(), **params):
    """As much of a test as its kinds are read from."""
    call = SimpleNamespace(params=params)
    return SimpleNamespace(path=kinds.TESTS / file, fixturenames=[*fixtures], callspec=call)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (item("reports/test_page.py", ["show", "browser"]), {"browser"}),
        (item("studies/failures/test_clusters.py", ["of_size", "cluster"]), {"cluster"}),
        (item("run/test_tls.py"), {"cluster"}),
        (item("papers/test_sinks.py", ["done"]), {"slow"}),
        (item("bench/test_run.py", ["done"]), set()),
        (item("captures/test_layers.py", name="smollm2"), {"download"}),
        (item("captures/test_layers.py", name=DEFAULT_MODEL), set()),
    ],
)
def test_a_test_is_of_the_kinds_of_what_it_takes(found, expected):
    assert set(kinds.kinds_of(found)) == expected


def test_long_files_come_first_and_files_that_share_something_stand_together():
    names = ["stats/test_rows.py", "reports/test_saving.py", "run/cluster/test_folding.py"]
    items = [item(name) for name in [*names, "reports/test_accessibility.py", names[0]]]
    ordered = [kinds.file_of(each) for each in kinds.in_order(items)]
    assert ordered == [names[1], "reports/test_accessibility.py", names[2], names[0], names[0]]


def test_only_the_default_model_can_be_fetched(monkeypatch):
    for module, name in ((catalogue, "fetch"), (catalogue, "is_converted"), (datasets, "fetch")):
        monkeypatch.setattr(module, name, getattr(module, name))  # to be put back
    kinds.only_the_default_model()
    assert catalogue.model_folder(DEFAULT_MODEL).is_dir()
    for name in MODELS.keys() - {DEFAULT_MODEL}:
        with pytest.raises(pytest.fail.Exception, match="such a test is marked `download`"):
            catalogue.model_folder(name)
    for name in ("wikipedia", "reviews"):
        with pytest.raises(pytest.fail.Exception, match="such a test is marked `download`"):
            next(iter(datasets.text(name)))
