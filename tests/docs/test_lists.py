"""Pages that list what there is: layers, functions, notebooks, papers, measurements."""

import importlib
import re
import xml.etree.ElementTree as ET
from functools import reduce

import pytest

from builder.questions import QUESTIONS
from docs.pages import DOCS, ROOT, tables, text
from eigenlens.papers import PAPERS
from test_rooms import LAYERS

SVG = "{http://www.w3.org/2000/svg}"


def test_the_drawing_has_the_layers_and_their_folders():
    drawing = ET.parse(DOCS / "pictures" / "layers.svg")
    drawn = {}
    for layer in drawing.iter(f"{SVG}g"):
        name, _, *rooms = (words.text for words in layer.iter(f"{SVG}text"))
        assert name == layer.get("data-layer")
        drawn[name] = rooms
    assert list(reversed(drawn.items())) == list(LAYERS.items())
    described = drawing.find(f"{SVG}desc").text
    for name, rooms in LAYERS.items():
        assert f"{name}: {', '.join(rooms)}." in described


def test_the_table_of_layers_is_that_of_the_tests():
    rows = tables(text("developing/index.md"))[0]
    listed = {
        layer: [room.rstrip("/") for room in re.findall(r"`([\w/]+)`", rooms)]
        for layer, rooms, _ in rows
    }
    assert list(reversed(listed.items())) == list(LAYERS.items())


def test_the_drawing_is_described_where_it_is_shown():
    alt = re.search(r"!\[([^]]+)\]\(\.\./pictures/layers\.svg\)", text("developing/index.md"))[1]
    for layer, rooms in LAYERS.items():
        assert layer in alt
        assert layer == "base" or all(room in " ".join(alt.split()) for room in rooms)


def named_functions():
    """Every `file.py` `function` of the way of a batch."""
    return re.findall(r"`([\w/]+)\.py` `([\w.]+)`", text("developing/way-of-a-batch.md"))


@pytest.mark.parametrize(("file", "function"), named_functions())
def test_functions_on_the_way_of_a_batch_exist(file, function):
    module = importlib.import_module(f"eigenlens.{file.replace('/', '.')}")
    assert callable(reduce(getattr, function.split("."), module))


def test_the_way_of_a_batch_has_every_step():
    assert len(named_functions()) > 20
    steps = re.findall(r"^\| (\d+) ", text("developing/way-of-a-batch.md"), re.MULTILINE)
    assert [int(step) for step in steps] == list(range(1, len(steps) + 1))


def test_the_page_of_notebooks_names_every_notebook_with_its_commands():
    page = text("start/notebooks.md")
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        assert f"`examples/{notebook.name}`" in page
        assert notebook.with_suffix(".sh").exists()


def test_the_table_of_papers_has_them_all():
    (rows,) = tables(text("papers/index.md"))
    papers = [row for row in rows if row[0] != "all"]
    assert len(papers) == len(PAPERS)
    for paper, question, *verdicts in papers:
        link, arxiv, command = paper.split("<br>")
        name = re.fullmatch(r"\[[^]]+\]\(([\w-]+)\.md\)", link)[1]
        assert name in PAPERS and command == f"`eigenlens reproduce {name}`"
        source = importlib.import_module(f"eigenlens.papers.{name.replace('-', '_')}")
        assert arxiv == re.search(r"arXiv \d{4}\.\d{5}", source.__doc__)[0]
        assert question == QUESTIONS[name][2] and all(verdicts)
        assert arxiv == f"arXiv {QUESTIONS[name][1]}"


def test_the_table_of_measurements_has_every_page():
    rows = tables(text("measurements/index.md"))[0]
    linked = {re.search(r"\(([^)]+)\)", row[0])[1].rsplit("/", 1)[-1] for row in rows}
    pages = {path.name for path in (ROOT / "benchmarks").glob("*.md")}
    assert linked == pages | {"mechanisms.md"}
    assert all(headline and "`" in command for _, headline, command in rows)


def test_the_front_page_leads_to_every_section():
    for folder in (
        "start",
        "guides",
        "concepts",
        "reference",
        "papers",
        "measurements",
        "developing",
    ):
        assert f"({folder}/" in text("index.md")
