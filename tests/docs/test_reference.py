"""The reference leaves nothing out: every command with all its options and JSON fields, every
exported name with its parameters.
"""

import inspect
import re
from html import unescape

import pytest
import typer

import eigenlens
from docs import pages
from eigenlens.cli import app
from eigenlens.papers import Reproduction

COMMANDS = typer.main.get_command(app).commands
LISTED = sorted(COMMANDS.keys() - {"demo", "show"})
"""Commands with a table of their JSON fields."""


def section(name):
    """What the page of commands says of one."""
    return pages.section("reference/commands.md", name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_section_with_all_its_options(site, name):
    assert f"<!-- options: {name} -->" in section(name)
    html = site.pages["reference/commands.html"]
    start = html.index(f'<h2 id="{name}"')
    end = html.find("<h2 ", start + 1)
    shown = unescape(re.sub(r"<[^>]+>", " ", html[start:end]))
    for parameter in COMMANDS[name].params:
        assert parameter.help and " ".join(parameter.help.split()) in " ".join(shown.split())
        assert any(option in shown for option in (*parameter.opts, parameter.name.upper()))


def test_every_exported_name_is_in_the_api(site):
    documented = {
        unescape(re.sub(r"<[^>]+>", "", heading)).split()[0].removesuffix("¶")
        for name, html in site.pages.items()
        if name.startswith("reference/python/")
        for heading in re.findall(r'<h2 id="eigenlens[^>]*>(.*?)</h2>', html, re.DOTALL)
    }
    missing = [
        name
        for name in eigenlens.__all__
        if name not in documented and f"{name}.register" not in documented
    ]
    assert not missing
    assert {f"attention.{name}" for name in eigenlens.attention.__all__} <= documented


@pytest.mark.parametrize(
    "name", [n for n in eigenlens.__all__ if inspect.isfunction(getattr(eigenlens, n))]
)
def test_a_function_has_a_table_of_its_parameters(site, name):
    html = "".join(page for place, page in site.pages.items() if "reference/python/" in place)
    function = getattr(eigenlens, name)
    start = html.index(f'<h2 id="{function.__module__}.{function.__name__}"')
    table = re.search(r"Parameters:.*?<table>(.*?)</table>", html[start:], re.DOTALL)[1]
    names = [pages.text_of(row) for row in re.findall(r"<tr class.*?</td>", table, re.DOTALL)]
    assert [found.lstrip("*") for found in names] == list(inspect.signature(function).parameters)


def fields(name):
    """The fields that a section lists under `JSON field`."""
    table = re.search(
        r"^\| JSON field \|.*?\n\|---\|---\|\n((?:\|.*\n)+)", section(name), re.MULTILINE
    )
    assert table, f"{name} lists no JSON fields"
    return {
        field
        for row in table[1].splitlines()
        for field in re.findall(r"`(\w+)`", row.split("|")[1])
    }


@pytest.mark.parametrize("name", LISTED)
def test_json_has_the_fields_that_are_listed(made, name):
    assert set(made.printed[name]) == fields(name)


def test_json_of_commands_that_borrow_their_fields(made):
    assert set(made.printed["show"]) == fields("study") | {"pictures"}
    empty = Reproduction("paper", "title", ())
    assert {*empty.record(), "pictures"} == fields("reproduce")
