"""`eigenlens report` as a user types it."""

import json
import sys
from functools import partial

import pytest


@pytest.fixture
def report(run):
    return partial(run, "report")


def test_it_writes_a_page_and_says_where(report, tiny, tmp_path):
    place = tmp_path / "page.html"
    done = report(tiny.folder, "-o", place, "--title", "A <title>")
    assert done.code == 0
    assert "page.html" in "".join(done.out.split())
    assert "A &lt;title&gt;" in place.read_text(encoding="utf-8")


def test_as_json(report, tiny, tmp_path):
    place = tmp_path / "page.html"
    done = report(tiny.folder / "study", "-o", place, "--json")
    assert done.code == 0
    assert json.loads(done.out) == {"page": str(place), "bytes": place.stat().st_size}


def test_by_default_it_is_report_html(report, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report(tiny.folder / "study").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    "what", ["missing", "foreign", "folder as page", "no report there", "damaged"]
)
def test_what_it_refuses_it_names_in_one_sentence(report, tiny, tmp_path, what):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "study.json").write_text("{")
    (tmp_path / "mine.html").write_text("mine")
    study = tiny.folder / "study"
    given = {
        "missing": (tmp_path / "missing",),
        "foreign": (tmp_path / "foreign",),
        "folder as page": (study, "-o", tmp_path),
        "no report there": (study, "-o", tmp_path / "mine.html"),
        "damaged": (tmp_path / "damaged",),
    }[what]
    if what in {"missing", "foreign", "damaged"}:
        given = (*given, "-o", tmp_path / "page.html")
    done = report(*given)
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    assert len(done.err.strip()) > 20
    assert done.err.strip().count("\n\n") == 0
    assert not (tmp_path / "page.html").exists()
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_no_folder_at_all(report):
    assert report().code == 2


def test_force_overwrites(report, tiny, tmp_path):
    place = tmp_path / "mine.html"
    place.write_text("mine")
    assert report(tiny.folder / "study", "-o", place, "--overwrite").code == 0
    assert place.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_without_the_package_that_draws_it_says_how_to_install_it(
    report, tiny, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    done = report(tiny.folder / "study", "-o", tmp_path / "page.html")
    assert done.code == 2
    assert (
        done.err.strip().splitlines()[-1]
        == "eigenlens: pictures are drawn by the package vl-convert-python, which is not"
        " installed; "
        "install it with: pip install vl-convert-python"
    )
    assert not (tmp_path / "page.html").exists()
