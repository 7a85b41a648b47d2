"""One plan with its examples, for all tests here."""

import pytest

import eigenlens as el
from tiny import some_text, tiny_bert


@pytest.fixture(scope="package")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    some_text(folder / "text.txt", documents=30)
    return folder


@pytest.fixture(scope="package")
def bert(place):
    """A model of two layers, its study, and a plan whose examples are all of the inputs it was
    chosen on.
    """
    folder, text = tiny_bert(place / "bert"), place / "text.txt"
    study = el.study(folder, text, place / "study", max_length=24, max_inputs=120, rank=8)
    return folder, study, el.plan(study, budget=0.4, max_inputs=3, output_dir=place / "plan")
