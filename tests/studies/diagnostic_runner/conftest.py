"""One study with every diagnostic, for all tests here."""

import pytest

from eigenlens import load, study
from studies.diagnostic_runner.small import SMALL


@pytest.fixture(scope="package")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("diagnosing")


@pytest.fixture(scope="package")
def data(text):
    return text


@pytest.fixture(scope="package")
def llama(llama):
    return load(llama)


@pytest.fixture(scope="package")
def made(place, llama, data):
    return study(llama, data, place / "study", **SMALL, diagnostics_every=3)
