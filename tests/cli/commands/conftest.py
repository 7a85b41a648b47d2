"""A tiny model, its studies and its plan, for all tests here."""

import json
from types import SimpleNamespace

import pytest

from cli.commands.typed import strict
from eigenlens import Study, plan, study
from tiny import some_text, tiny_bert


@pytest.fixture(scope="package")
def world(tmp_path_factory):
    """A tiny model, a text, and finished studies of it at lengths 16 and 12."""
    home = tmp_path_factory.mktemp("world")
    made = SimpleNamespace(
        home=home, model=tiny_bert(home / "tiny"), text=some_text(home / "a.txt")
    )
    for name, length in (("study", 16), ("shorter", 12)):
        found = study(made.model, made.text, home / name, max_inputs=24, max_length=length)
        setattr(made, name, found.folder)
    made.plan = home / "plan"
    plan(made.study, budget=0.3, max_inputs=4, output_dir=made.plan)
    made.bare = study(
        made.model, made.text, home / "bare", max_inputs=24, max_length=16, only=["rows"]
    ).folder
    made.other = tiny_bert(home / "other", seed=1)
    made.record = strict(json.dumps(Study.open(made.study).record()))
    return made
