"""The README is short, in order, and true."""

import json
import re
import shlex

import pytest
import typer

import eigenlens as el
from docs.pages import ROOT
from eigenlens.cli import app
from tiny import some_text, tiny_bert

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_command(app).commands
ORDER = (
    "make demo",
    "## What you learn in a minute",
    "## Install",
    "## Use",
    "## Five terms",
    "## Features, beside other tools",
    "## Which models",
    "## What it costs",
    "## What it is not for",
    "## Citing, contributing, licence",
)


def section(title):
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def test_it_has_at_most_1200_words():
    shown = re.sub(r"<!--.*?-->", "", README)
    assert len(shown.split()) <= 1200


def test_its_parts_come_in_order_the_two_commands_near_the_top():
    places = [README.index(part) for part in ORDER]
    assert places == sorted(places)
    assert README.index("make test") < README.index(ORDER[1])
    assert len(re.findall(r"!\[", README)) == 1 and README.index("![") < places[0]


def test_findings_terms_and_costs_are_as_many_as_promised():
    assert len(re.findall(r"^\d\. ", section("What you learn in a minute"), re.MULTILINE)) == 3
    assert len(re.findall(r"^- ", section("Five terms"), re.MULTILINE)) == 5
    assert len(re.findall(r"^\| [^|]", section("What it costs"), re.MULTILINE)) == 4


def test_every_feature_has_one_line_and_one_link_and_stands_beside_four_tools():
    head, _, *rows = re.findall(r"^\|.*\|$", section("Features, beside other tools"), re.MULTILINE)
    assert head.count("|") == 6
    for row in rows:
        assert row.count("|") == 6 and row.count("](") == 1, row
        target = re.search(r"\]\(([^)]+)\)", row)[1]
        assert (ROOT / target).is_file(), target


def test_its_commands_have_the_options_they_are_shown_with():
    shown = [
        shlex.split(line, comments=True)[2:] if line.startswith("$") else None
        for line in README.splitlines()
        if line.startswith("$ eigenlens ")
    ]
    assert len(shown) == 3
    for name, *words in shown:
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known


def test_its_python_runs(tmp_path, monkeypatch):
    """All ten lines, with a tiny model and texts in the place of those it names."""
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert len(code.strip().splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    model = str(tiny_bert(tmp_path / "model"))
    for name in ("book.txt", "other.txt"):
        some_text(tmp_path / name)
    el.study(model, "book.txt", "another-study", max_inputs=12)
    exec(compile(code.replace('"minilm"', repr(model)), "README.md", "exec"), {})
    assert (tmp_path / "page.html").stat().st_size > 100_000


def test_the_figures_of_its_findings_are_those_of_the_demo(tmp_path):
    """Kept beside the picture that is drawn from the same results."""
    kept = json.loads((ROOT / "docs" / "pictures" / "overview.json").read_text(encoding="utf-8"))
    found = section("What you learn in a minute")
    for words in kept.values():
        assert words in " ".join(found.split()), words


@pytest.mark.parametrize("name", ["TransformerLens", "bertviz", "captum", "kvpress"])
def test_it_says_what_the_others_do_better(name):
    better = section("Features, beside other tools").split("Better elsewhere")[1]
    assert f"**{name}**" in better
