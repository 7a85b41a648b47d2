"""Results made once for all tests of the report: a real model with everything, and a tiny one that
is cheap to open.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import eigenlens as el
from reports.browser import Shown
from tiny import of_catalogue, some_text, tiny_bert


@dataclass
class World:
    """One model's results, the folder that holds them, and the page that shows them."""

    folder: Path
    page: Path
    study: Any
    plan: Any = None
    evaluation: Any = None
    collapse: Any = None


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    return some_text(tmp_path_factory.mktemp("text") / "text.txt", documents=24)


@pytest.fixture(scope="session")
def mini(tmp_path_factory, text):
    """Everything there is of minilm, at 48 tokens: long enough that the page has windows of tokens
    to choose from.
    """
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("mini")
    model = of_catalogue("minilm")
    study = el.study(model, text, folder / "study", max_inputs=24, max_length=48, rank=24)
    plan = el.plan(study, model=model, budget=0.25, max_inputs=3, output_dir=folder / "plan")
    evaluation = el.evaluate(model, plan=plan, max_inputs=2, output_dir=folder / "evaluation")
    collapse = el.collapse(
        model, text, folder / "collapse", max_inputs=4, paths=2, bounds=1, max_length=32
    )
    page = el.report(folder, output=folder / "page.html")
    return World(folder, page, study, plan, evaluation, collapse)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, text):
    """A model of two layers with two heads each: its study and a plan."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny")
    model = tiny_bert(folder / "model")
    study = el.study(model, text, folder / "study", max_inputs=24, max_length=16, rank=8)
    plan = el.plan(
        study,
        budget=0.5,
        max_inputs=3,
        estimators=["mean", "rows-lmmse"],
        output_dir=folder / "plan",
    )
    page = el.report(study, plan, output=folder / "page.html")
    return World(folder, page, study, plan)


@pytest.fixture
def show(browser):
    """Open pages in the browser; they close when the test ends."""
    opened = []

    def shown(path, **options):
        opened.append(Shown(browser, path, **options))
        return opened[-1]

    yield shown
    for each in opened:
        each.close()


@pytest.fixture(scope="session")
def mini_shown(browser, mini):
    """The page of minilm, opened once since that takes seconds: each test sets what it needs."""
    with Shown(browser, mini.page) as found:
        yield found
