"""The documentation is true.

The site builds without a warning, its code runs, and it leaves nothing out.
"""

import json
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import eigenlens
from eigenlens.anatomy import families
from eigenlens.attention import registry
from eigenlens.cli import app
from eigenlens.papers import Reproduction
from tiny import some_text, tiny_bert

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COMMANDS = typer.main.get_command(app).commands
RUN = re.compile(r"^<!-- run -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, and what the build said."""
    folder = tmp_path_factory.mktemp("site")
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        "mkdocs.yml",
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=600)
    return folder, done.returncode, done.stdout + done.stderr


def pages(site):
    return {
        path.relative_to(site[0]).as_posix(): path.read_text(encoding="utf-8")
        for path in site[0].rglob("*.html")
    }


def section(name):
    """What the page of commands says of one."""
    found = re.search(
        rf"^## {name}\n(.*?)(?=^## |\Z)",
        (DOCS / "commands.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert found, f"docs/commands.md has no section {name}"
    return found[1]


def test_the_site_builds_without_a_warning(site):
    _, code, message = site
    assert code == 0, message
    assert not re.search(r"^(WARNING|ERROR)", message, re.MULTILINE), message


class Loaded(HTMLParser):
    """What a browser fetches for a page."""

    def __init__(self):
        super().__init__()
        self.places = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in {"script", "img", "iframe", "source", "video", "audio", "embed"}:
            self.places.append(given.get("src"))
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            self.places.append(given.get("href"))


def test_no_page_asks_the_network_for_anything(site):
    found = pages(site)
    assert len(found) > 15
    for name, html in found.items():
        loaded = Loaded()
        loaded.feed(html)
        assert loaded.places, name
        for place in filter(None, loaded.places):
            assert not re.match(r"(https?:)?//", place), f"{name} loads {place}"
            if not place.startswith("data:"):
                # the page for lost links is absolute
                base = site[0] if place.startswith("/") else (site[0] / name).parent
                assert (base / place.partition("?")[0].lstrip("/")).exists(), (
                    f"{name} loads {place}, which is not there"
                )
    for style in site[0].rglob("*.css"):
        assert not re.search(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""", style.read_text()), (
            style
        )


def test_formulas_are_drawn(site):
    html = pages(site)["concepts.html"]
    formulas = len(
        re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", (DOCS / "concepts.md").read_text(), re.DOTALL)
    )
    assert html.count("<math ") == formulas > 50
    assert "arithmatex" not in html and "\\frac" not in html


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_section_with_all_its_options(site, name):
    assert f"<!-- options: {name} -->" in section(name)
    html = pages(site)["commands.html"]
    start = html.index(f'<h2 id="{name}"')
    end = html.find("<h2 ", start + 1)
    shown = unescape(re.sub(r"<[^>]+>", " ", html[start:end]))
    for parameter in COMMANDS[name].params:
        assert parameter.help and " ".join(parameter.help.split()) in " ".join(shown.split())
        assert any(option in shown for option in (*parameter.opts, parameter.name.upper()))


def test_every_exported_name_is_in_the_api(site):
    documented = {
        unescape(re.sub(r"<[^>]+>", "", heading)).split()[0].removesuffix("¶")
        for name, html in pages(site).items()
        if name.startswith("api/")
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
    "page", ["first-study.md", "mechanisms.md", "extending.md", "diagnostics.md"]
)
def test_the_examples_of_a_page_run(page, monkeypatch):
    """All blocks of a page, one after the other.

    What they add to the package is taken away again.
    """
    monkeypatch.setattr(families, "READERS", families.READERS)
    for table in ("_registered", "_known", "_aliases"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = list(RUN.finditer(text))
    assert len(blocks) == text.count("<!-- run -->") >= 2
    names: dict = {}
    for block in blocks:
        # so that a traceback names the line of the page
        before = "\n" * text[: block.start(1)].count("\n")
        exec(compile(before + block[1], str(DOCS / page), "exec"), names)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """The JSON of commands on a tiny model."""
    place = tmp_path_factory.mktemp("commands")
    model, text = str(tiny_bert(place / "model")), str(some_text(place / "text.txt"))
    study, other, plan, evaluation, run = (
        str(place / name) for name in ("study", "other", "plan", "evaluation", "collapse")
    )
    small = ["--max-length", "16", "--max-inputs"]
    calls = {
        "models": [],
        "study": [model, text, "-o", study, *small, "12"],
        "show": [study],
        "compare": [study, other],
        "plan": [study, "--budget", "0.5", "--max-inputs", "2", "-o", plan],
        "evaluate": [model, "--plan", plan, "--max-inputs", "2", "-o", evaluation],
        "collapse": [
            model,
            text,
            "-o",
            run,
            *small,
            "3",
            "--paths",
            "1",
            "--bounds",
            "1",
            "--variants",
            "SAN",
        ],
        "report": [study, plan, "-o", str(place / "page.html")],
    }
    found = {}
    _json("study", [model, text, "-o", other, *small, "12", "--seed", "1", "--only", "rows"])
    for name, arguments in calls.items():
        found[name] = _json(name, arguments)
    return found


def _json(name, arguments):
    done = CliRunner().invoke(app, [name, *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


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


@pytest.mark.parametrize(
    "name", ["models", "study", "compare", "plan", "evaluate", "collapse", "report"]
)
def test_json_has_the_fields_that_are_listed(printed, name):
    assert set(printed[name]) == fields(name)


def test_json_of_commands_that_borrow_their_fields(printed):
    assert set(printed["show"]) == fields("study") | {"pictures"}
    empty = Reproduction("paper", "title", ())
    assert {*empty.record(), "pictures"} == fields("reproduce")


def test_links_lead_somewhere_on_github_too():
    """From file to file of the repository.

    That those of the site do is for the strict build to say.
    """
    files = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "benchmarks").glob("*.md"),
        *DOCS.rglob("*.md"),
    ]
    for file in files:
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", file.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (file.parent / target).exists(), (
                    f"{file.relative_to(ROOT)} links to {target}"
                )
