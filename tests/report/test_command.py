"""`eigenlens report` as a user types it."""

import json
import sys
from types import SimpleNamespace

import pytest

from eigenlens import cli


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*args):
        monkeypatch.setattr(sys, "argv", ["eigenlens", "report", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code or 0, out=printed.out, err=printed.err)

    return call


def test_it_writes_a_page_and_says_where(run, tiny, tmp_path):
    place = tmp_path / "page.html"
    done = run(tiny.folder, "-o", place, "--title", "A <title>")
    assert done.code == 0
    assert "page.html" in "".join(done.out.split())
    assert "A &lt;title&gt;" in place.read_text(encoding="utf-8")


def test_as_json(run, tiny, tmp_path):
    place = tmp_path / "page.html"
    done = run(tiny.folder / "study", "-o", place, "--json")
    assert done.code == 0
    assert json.loads(done.out) == {"page": str(place), "bytes": place.stat().st_size}


def test_by_default_it_is_report_html(run, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(tiny.folder / "study").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("what", ["missing", "foreign", "folder as page", "no report there", "damaged"])
def test_what_it_refuses_it_names_in_one_sentence(run, tiny, tmp_path, what):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "study.json").write_text("{")
    (tmp_path / "mine.html").write_text("mine")
    study = tiny.folder / "study"
    given = {
        "missing": (tmp_path / "missing",), "foreign": (tmp_path / "foreign",), "folder as page": (study, "-o", tmp_path),
        "no report there": (study, "-o", tmp_path / "mine.html"), "damaged": (tmp_path / "damaged",),
    }[what]  # fmt: skip
    if what in {"missing", "foreign", "damaged"}:
        given = (*given, "-o", tmp_path / "page.html")
    done = run(*given)
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    assert len(done.err.strip()) > 20
    assert done.err.strip().count("\n\n") == 0
    assert not (tmp_path / "page.html").exists()
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_no_folder_at_all(run):
    assert run().code == 2


def test_force_overwrites(run, tiny, tmp_path):
    place = tmp_path / "mine.html"
    place.write_text("mine")
    assert run(tiny.folder / "study", "-o", place, "--force").code == 0
    assert place.read_text(encoding="utf-8").startswith("<!doctype html>")
