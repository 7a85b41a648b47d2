"""The site, built once for all tests of the documentation, and a result of every kind."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

import eigenlens as el
from docs import pages
from docs.pages import ROOT, Site
from eigenlens.bench import make_bench
from eigenlens.bench.speed import SpeedScale
from eigenlens.cli import app
from eigenlens.papers import PAPERS
from tiny import some_text, tiny_bert

RUN = """
[task]
name = "sort"
train = 40
test = 10
[model]
layers = 1
width = 8
heads = 2
[training]
steps = 4
batch = 8
measure = 2
seeds = [0, 3]
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site, and what the build said."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    build = [sys.executable, "docs/build.py", "-o", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=600)
    return Site(folder, done.returncode, done.stdout + done.stderr)


@dataclass(frozen=True)
class Made:
    """What commands printed as JSON, by command, and the folders they wrote, by kind of result."""

    printed: dict
    folders: dict


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A result of every kind, by the commands, on a tiny model."""
    place = tmp_path_factory.mktemp("commands")
    model, text = str(tiny_bert(place / "model")), str(some_text(place / "text.txt"))
    run = place / "run.toml"
    run.write_text(RUN)
    kinds = ("study", "plan", "evaluation", "collapse", "explanation", "run")
    folders = {kind: place / kind for kind in kinds}
    study, plan, evaluation, collapse, explanation, trained = map(str, folders.values())
    other, small = str(place / "other"), ["--max-length", "16", "--max-inputs"]
    calls = {
        "models": [],
        "doctor": [],
        "study": [model, text, "-o", study, *small, "12"],
        "show": [study],
        "compare": [study, other],
        "plan": [study, "--budget", "0.5", "--max-inputs", "2", "-o", plan],
        "evaluate": [model, "--plan", plan, "--max-inputs", "2", "-o", evaluation],
        "collapse": [model, text, "-o", collapse, *small, "3", "--paths", "1", "--bounds", "1"],
        "explain": [model, "the house of", "--target", "output", "-o", explanation],
        "train": [str(run), "-o", trained],
        "bench": ["speed", "--mechanisms", "softmax,window", "-o", str(place / "bench")],
        "reproduce": ["near-uniform", "--quick", "-o", str(place / "reproduction")],
        "report": [study, plan, "-o", str(place / "page.html")],
    }
    with pytest.MonkeyPatch.context() as patch:
        scale = SpeedScale((16, 32, 64), 2, 4, recurrence=32, seconds=0.0, rounds=2)
        patch.setattr(make_bench, "SCALES", {"speed": (scale, scale)})
        patch.setitem(PAPERS, "near-uniform", _tiny_paper())
        only = ["--seed", "1", "--only", "rows"]
        _json("study", [model, text, "-o", other, *small, "12", *only])
        printed = {name: _json(name, arguments) for name, arguments in calls.items()}
    folders["bench"] = place / "bench" / "speed"
    folders["reproduction"] = place / "reproduction" / "near-uniform"
    folders["comparison"] = el.compare(study, other).save(place / "comparison")
    return Made(printed, folders)


def _json(name, arguments):
    done = CliRunner().invoke(app, [name, *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def _tiny_paper():
    """The paper that the page on papers shows."""
    page = pages.text("developing/add-a-paper.md")
    block = re.search(r"<!-- run -->\n```python\n(.*?)^with ", page, re.DOTALL | re.MULTILINE)[1]
    names: dict = {}
    exec(compile(block, "add-a-paper.md", "exec"), names)
    return names["paper"]
