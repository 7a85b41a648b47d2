"""Whose is this: where a page has several models every card, picture, table and file names its own,
and data is told briefly.
"""

import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

import eigenlens as el
from eigenlens.reports.gather import gather
from eigenlens.reports.names import Names
from tiny import some_text, tiny_bert

OURS, THEIRS = "ours", "theirs"


@pytest.fixture(scope="module")
def world(tmp_path_factory, text):
    """Of `ours` a study and a plan, of `theirs` a collapse run, an evaluation and an
    explanation.
    """
    folder = tmp_path_factory.mktemp("two models")
    ours, theirs = tiny_bert(folder / OURS), tiny_bert(folder / THEIRS, seed=1)
    study = el.study(ours, text, folder / "study", max_inputs=24, max_length=16, rank=8)
    other = el.study(theirs, text, max_inputs=24, max_length=16, rank=8)
    budget = {"budget": 0.5, "max_inputs": 3, "estimators": ["mean", "rows-lmmse"]}
    plan = el.plan(study, **budget)
    evaluation = el.evaluate(theirs, plan=el.plan(other, **budget), max_inputs=2)
    collapse = el.collapse(theirs, text, max_inputs=4, paths=2, bounds=1, max_length=16)
    explanation = el.explain(theirs, "the dog ran home", against="a cat slept")
    page = el.report(study, plan, collapse, evaluation, explanation, output=folder / "page.html")
    return {"page": page, "study": study, "collapse": collapse, "folder": folder}


@pytest.fixture(scope="module")
def shown(browser, world):
    from reports.browser import Shown

    with Shown(browser, world["page"]) as found:
        found.unfold()
        yield found


WHOSE = {
    "heads": OURS,
    "within": OURS,
    "overlap": OURS,
    "diagnosis": OURS,
    "depth": OURS,
    "plan": OURS,
    "collapse": THEIRS,
    "evaluation": THEIRS,
    "explanation": THEIRS,
}


def whose(key):
    return next(model for kind, model in WHOSE.items() if key.startswith(kind))


class Told(HTMLParser):
    """Text and names of every heading, caption, picture, table and button of an HTML page, by the
    article they stand in.
    """

    def __init__(self):
        super().__init__()
        self.article, self.open, self.found = None, [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "article":
            self.article = given["id"]
        if self.article and tag in {"h3", "figcaption", "summary", "caption"}:
            self.open.append([tag, ""])
        chosen = (given.get("role") == "img" and "chart" in given.get("class", "")) or {
            "data-csv",
            "data-save",
        } & set(given)
        if self.article and chosen:
            self.found.append((self.article, tag, given["aria-label"]))

    def handle_data(self, data):
        if self.open:
            self.open[-1][1] += data

    def handle_endtag(self, tag):
        if self.open and self.open[-1][0] == tag:
            self.found.append((self.article, *self.open.pop()))
        if tag == "article":
            self.article = None


def test_every_heading_picture_table_and_button_names_its_model_and_no_other(world):
    page = Told()
    page.feed(world["page"].read_text(encoding="utf-8"))
    named = [
        (key, tag, text) for key, tag, text in page.found if text != "Every number of this head"
    ]
    assert {tag for _, tag, _ in named} == {
        "h3",
        "figcaption",
        "summary",
        "caption",
        "div",
        "button",
    }
    assert {kind for kind in WHOSE if any(key.startswith(kind) for key, *_ in named)} == set(WHOSE)
    for key, tag, text in named:
        mine, other = (OURS, THEIRS) if whose(key) == OURS else (THEIRS, OURS)
        assert mine in text and other not in text, (key, tag, text)


def test_every_line_of_the_summary_names_its_model(shown):
    lines = dict(
        zip(
            shown.page.locator("#summary dt").all_inner_texts(),
            shown.page.locator("#summary dd").all_inner_texts(),
        )
    )
    assert all(
        lines[name].startswith(f"{OURS} on text.txt: ")
        for name in ("What was studied", "How low-dimensional")
    )
    assert lines["What the plan saves"].startswith(f"{OURS} on text.txt, budget 0.5: ")
    assert lines["Where it would collapse"].startswith(f"{THEIRS} on text.txt: ")
    assert lines["What is lost"].startswith(f"{THEIRS} on text.txt, budget 0.5: ")
    assert f"Which tokens decide in {THEIRS}" in lines
    assert shown.text("h1") == f"{OURS} and {THEIRS}"


def test_the_panel_of_an_opened_head_names_its_model(shown):
    shown.page.locator("#heads0 [data-head]").last.click()
    assert shown.text("#heads0-name") == f"L1H1 · {OURS}"


def test_every_saved_file_names_its_model(shown):
    names = [name for name, _ in shown.saved_at_once("[data-csv], [data-save=csv]")]
    assert len(names) > 40
    for name in names:
        model, _, key = name.partition("-")
        assert model == whose(key), name


@pytest.mark.parametrize(
    ("key", "model"),
    [("collapse0-bounds-bounds", THEIRS), ("heads0-map", OURS), ("plan0-budgets", OURS)],
)
def test_a_saved_picture_names_its_model_and_no_other(shown, key, model):
    root = ET.fromstring(shown.figure(key, "svg"))
    words = " ".join(
        "".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")
    )
    assert f"{model} · " in words
    assert ({OURS, THEIRS} - {model}).pop() not in words


def test_the_page_complains_of_nothing(shown):
    shown.settle()
    assert shown.complaints == []


def test_where_there_is_one_model_nothing_repeats_it(tiny):
    page = Told()
    page.feed(tiny.page.read_text(encoding="utf-8"))
    assert ("heads0", "figcaption", "Variance explained by the leading components") in page.found
    assert ("heads0", "h3", "Layers × heads") in page.found


def test_two_models_of_one_name_are_told_apart_by_their_weights(world, text, tmp_path):
    again = el.collapse(
        tiny_bert(tmp_path / OURS, seed=2), text, max_inputs=4, paths=0, bounds=0, max_length=16
    )
    names = Names.of(gather([world["study"], again]))
    digits = [result.facts.model.fingerprint[:6] for result in (world["study"], again)]
    assert [names.model(world["study"]), names.model(again)] == [
        f"{OURS} ({each})" for each in digits
    ]
    assert names.title == f"{OURS} ({digits[0]}) and {OURS} ({digits[1]})"
    assert names.relabelled(f"{OURS} on a.txt", again) == f"{OURS} ({digits[1]}) on a.txt"


@pytest.fixture(scope="module")
def many(tmp_path_factory, world):
    """A study of thirteen files."""
    folder = tmp_path_factory.mktemp("many")
    whole = some_text(folder / "whole.txt", documents=13).read_text()
    files = [folder / f"part-{i:02}.txt" for i in range(13)]
    for i, file in enumerate(files):
        file.write_text(whole[i * len(whole) // 13 : (i + 1) * len(whole) // 13])
    study = el.study(
        world["folder"] / OURS, files, folder / "study", max_inputs=24, max_length=16, rank=8
    )
    return study, ", ".join(file.name for file in files)


def test_thirteen_files_are_a_number_in_a_title_and_a_list_beside_it(show, many, world, tmp_path):
    study, names = many
    assert study.name == f"{OURS} on 13 files"
    assert study.facts.data.name == names
    shutil.copytree(study.folder, tmp_path / "study")
    shown = show(el.report(tmp_path / "study", world["collapse"], output=tmp_path / "page.html"))
    heading = shown.page.locator("#heads0 > h3")
    assert heading.inner_text() == f"Layers × heads: {OURS} on 13 files"
    assert heading.get_attribute("title") == names
    assert shown.page.locator("#collapse0-curves > h3").get_attribute("title") is None
    assert f"{OURS} on 13 files: 4 heads in 2 layers" in shown.text("#summary")
    assert "part-07" not in shown.text("#summary")
    assert names in shown.text("#made")
