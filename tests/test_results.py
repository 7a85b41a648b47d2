"""Every kind of result keeps one protocol: it opens, saves, tells, tabulates, draws and prints in
the same manner.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import altair as alt
import pytest
from rich.console import Console

import eigenlens as el
from eigenlens.bench import Bench, run_bench
from eigenlens.bench import make_bench as benches
from eigenlens.bench.speed import SpeedScale
from eigenlens.captures import labelled
from eigenlens.cli import terminal
from eigenlens.cli.opening import open_result
from eigenlens.explanations import Explanation
from eigenlens.lab import TrainingRun
from eigenlens.lab import run as train
from eigenlens.papers import Claim, Reproduction
from eigenlens.reports import kinds
from eigenlens.run.result import ResultViews, frame_of
from eigenlens.studies import Comparison, Study

BEFORE = Path(__file__).parent / "written_before" / "0.1.0"
KINDS = {
    "study": Study,
    "plan": el.Plan,
    "block-plan": el.Plan,
    "evaluation": el.Evaluation,
    "collapse": el.Collapse,
    "explanation": Explanation,
    "comparison": Comparison,
    "bench": Bench,
    "reproduction": Reproduction,
    "training run": TrainingRun,
}
OF_HEADS = {"study", "plan", "block-plan"}
"""Kinds whose rows are about heads."""
OF_A_MODEL = {"study", "plan", "block-plan", "evaluation", "collapse", "explanation"}


def reproduction():
    claims = (
        Claim("it falls", "by half", 0.4, (0.3, 0.5), "at most 0.5", "reproduced", "mean"),
        Claim(
            "it rises", "twofold", None, None, "not judged: it needs a cluster", "out of reach", ""
        ),
    )
    costs = {"attention_cost": 1.0, "forward_milliseconds": 2.0, "seeds": 2}
    training = [
        {"mechanism": "full", "protocol": "tuned", "share": 1.0, "loss": 2.0, **costs},
        {"mechanism": "window", "protocol": "tuned", "share": 0.5, "loss": 2.5, **costs},
    ]
    shown = (("Training", "training"),)
    return Reproduction(
        "eigen-analysis",
        "A paper",
        claims,
        tables={"training": training},
        notes=("small",),
        settings={"seed": 0},
        shown=shown,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One result of every kind; those that 0.1.0 wrote are opened."""
    folder = tmp_path_factory.mktemp("results")
    found = {
        name: kind.open(BEFORE / name) for name, kind in KINDS.items() if (BEFORE / name).is_dir()
    }
    other = shutil.copytree(BEFORE / "study", folder / "other")
    found["comparison"] = el.compare(BEFORE / "study", other)
    with pytest.MonkeyPatch.context() as patch:
        scale = SpeedScale((16, 32, 64), 2, 4, recurrence=32, seconds=0.0, rounds=2)
        patch.setattr(benches, "SCALES", {"speed": (scale, scale)})
        names = ["softmax", "window"]
        found["bench"] = run_bench("speed", folder / "bench", mechanisms=names, device="cpu")
    found["reproduction"] = reproduction()
    small = {
        "task": {"name": "sort", "train": 40, "test": 10},
        "model": {"layers": 1, "width": 8, "heads": 2},
        "training": {"steps": 4, "batch": 8, "measure": 2, "seeds": [0, 3]},
    }
    found["training run"] = train(small, folder / "run")
    return found


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def result(results, kind):
    return results[kind]


def test_there_is_one_of_every_kind(results):
    assert set(results) == set(KINDS)
    assert all(type(results[name]) is kind for name, kind in KINDS.items())


def _leaves(cls):
    """The classes below `cls` that have none below themselves."""
    below = cls.__subclasses__()
    return [leaf for each in below for leaf in _leaves(each)] if below else [cls]


def test_every_kind_is_in_the_table():
    classes = {kind.result for kind in kinds.KINDS}
    assert classes == set(_leaves(ResultViews)) == set(KINDS.values())
    assert len(classes) == len(kinds.KINDS) == len({kind.file for kind in kinds.KINDS})


def test_a_folder_says_what_it_holds(result, kind, tmp_path):
    folder = result.save(tmp_path / "result")
    assert [held.result for held in kinds.kinds_in(folder)] == [KINDS[kind]]
    held, opened = open_result(folder)
    assert type(opened) is held.result is KINDS[kind]
    assert opened.record() == result.record()


@pytest.mark.parametrize("kind", ["bench", "reproduction", "training run"])
def test_a_page_refuses_what_is_not_of_one_model(results, kind, tmp_path):
    page, folder = tmp_path / "page.html", results[kind].save(tmp_path / "result")
    sentence = (
        "a report shows studies, comparisons, plans, evaluations, collapse runs and"
        f" explanations, not {results[kind]!r}"
    )
    with pytest.raises(el.EigenlensError, match=f"^{re.escape(sentence)}$"):
        el.report(results[kind], output=page)
    with pytest.raises(el.EigenlensError, match="holds no result of eigenlens"):
        el.report(folder, output=page)
    assert not page.exists()


def test_what_is_saved_opens_the_same(result, kind, tmp_path):
    folder = result.save(tmp_path / "there" / "it is")
    assert folder == tmp_path / "there" / "it is"
    again = KINDS[kind].open(folder)
    assert again.rows() == result.rows()
    assert again.record() == result.record()
    assert (again.name, again.title) == (result.name, result.title)
    assert (again.sentence, tuple(again.notes)) == (result.sentence, tuple(result.notes))
    assert again.plot().to_dict() == result.plot().to_dict()
    assert KINDS[kind].open(again.save(folder)).record() == result.record()  # onto itself


def test_a_folder_without_it_is_refused_with_the_reason(kind, tmp_path):
    with pytest.raises(el.EigenlensError, match=r"\.json|is no folder"):
        KINDS[kind].open(tmp_path / "nothing")


def test_rows_are_records_with_the_same_keys(result, kind):
    rows = result.rows()
    assert rows and all(row.keys() == rows[0].keys() for row in rows)
    places = [row for row in rows if row.get("level", "head") == "head" and "head" in row]
    assert bool(places) == (kind in OF_HEADS)
    for row in places:
        assert type(row["layer"]) is int and type(row["head"]) is int
        assert isinstance(row["stack"], str)


def test_the_record_is_plain_data(result):
    text = json.dumps(result.record())
    assert json.loads(text).keys() == result.record().keys()


def test_it_says_what_it_is_and_what_it_found(result):
    for text in (result.name, result.title, result.sentence):
        assert isinstance(text, str) and text.strip()
    assert result.sentence.endswith(".")
    assert all(isinstance(note, str) for note in result.notes)


def test_it_draws_itself(result):
    assert isinstance(result.plot(), alt.TopLevelMixin)
    view = result._repr_html_()
    assert view.startswith("<h4>") and "<table>" in view and "<script" not in view


@pytest.mark.parametrize("full", [False, True])
def test_it_prints_itself(result, capsys, tmp_path, full):
    terminal.show(result, full, tmp_path)
    printed = capsys.readouterr().out
    more = f"All tables and columns: eigenlens show {tmp_path} --full"
    text, _, end = printed.partition(more)
    assert text.startswith(result.title) and text.rstrip().endswith(result.sentence)
    words = " ".join(printed.split())  # long titles and lines below tables are broken
    tables = result.printed()
    assert any(not table.long for table in tables) and all(table.rows for table in tables)
    for table in tables:
        shown = full or not table.long
        assert (" ".join(table.title.split()) in words) == shown
        assert not shown or " ".join(table.below.split()) in words
    cut = [t for t in tables if t.long or (t.columns and {*t.columns} != {*t.rows[0]})]
    assert (more in printed) == (bool(cut) and not full) and not end.strip()


def test_its_tables_are_at_most_100_characters_wide(result, capsys):
    for table in result.printed():
        if not table.long:
            terminal.print_table(table.title, labelled(table.short()))
            wide = [
                line for line in capsys.readouterr().out.splitlines() if len(line.rstrip()) > 100
            ]
            assert not wide


def test_facts_are_those_of_the_file(results):
    for name in OF_A_MODEL:
        stored, facts = results[name].stored, results[name].facts
        model = stored["model"]
        assert facts.model.name == (model if isinstance(model, str) else model["name"])
        assert facts.model.fingerprint
        assert (facts.length, facts.inputs) == (stored["length"], stored["inputs"])
        assert facts.notes == tuple(stored.get("notes", ()))
        assert facts.versions == stored.get("versions", {})
        assert (facts.created, facts.seconds) == (stored.get("created"), stored.get("seconds"))
    assert results["study"].facts.data.name == results["study"].stored["data"]["name"]
    assert results["plan"].facts.data == results["study"].facts.data
    assert results["evaluation"].facts.data.name == results["evaluation"].stored["data"]
    assert results["explanation"].facts.data.name == results["explanation"].stored["data"]


def test_a_comparison_opens_without_its_studies(results, tmp_path):
    one, other = (shutil.copytree(BEFORE / "study", tmp_path / name) for name in ("a", "b"))
    made = el.compare(one, other)
    made.save(tmp_path / "comparison")
    shutil.rmtree(one)
    shutil.rmtree(other)
    found = Comparison.open(tmp_path / "comparison")
    assert [study.folder for study in found.studies] == [one, other]
    for mine, theirs in zip(found.pairs, made.pairs, strict=True):
        assert (mine.forward.matrix == theirs.forward.matrix).all()
        assert (mine.backward.captured == theirs.backward.captured).all()
    with pytest.raises(el.EigenlensError, match="no such study"):
        el.report(found, output=tmp_path / "page.html")
    (tmp_path / "comparison" / "comparison.safetensors").write_bytes(b"")
    with pytest.raises(
        el.EigenlensError, match=r"comparison\.safetensors is missing or has changed"
    ):
        Comparison.open(tmp_path / "comparison")


class Frame:
    def __init__(self, rows, **options):
        self.rows, self.options = rows, options


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_is_of_the_library_that_is_there(result, library, monkeypatch):
    for name in ("pandas", "polars"):  # None makes an import fail
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(DataFrame=Frame))
    found = result.frame()
    assert isinstance(found, Frame) and found.rows == result.rows()


def test_pandas_comes_first(monkeypatch):
    for name in ("pandas", "polars"):
        monkeypatch.setitem(
            sys.modules, name, SimpleNamespace(DataFrame=lambda rows, name=name, **_: name)
        )
    assert frame_of([]) == "pandas"


def test_without_either_library_it_says_what_to_install(monkeypatch):
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(el.EigenlensError, match="install pandas or polars"):
        frame_of([{"layer": 0}])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_of_the_real_library_has_the_columns_of_the_rows(results, library):
    pytest.importorskip(library)
    found = frame_of(results["plan"].rows())
    assert list(found.columns) == list(results["plan"].rows()[0])


def test_tokens_are_coloured_where_the_terminal_has_colours(results, capsys, monkeypatch):
    made = Console(force_terminal=True, color_system="truecolor", width=60)
    monkeypatch.setattr("rich.console.Console", lambda **_: made)
    terminal.show(results["explanation"])
    assert "\x1b[" in capsys.readouterr().out
