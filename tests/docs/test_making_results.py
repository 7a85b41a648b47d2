"""`make results`: which papers run, how they go on, and what is stored."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

import eigenlens as el
from builder.pictures import mark_of, marked
from docs.conftest import _tiny_paper
from docs.pages import ROOT
from eigenlens.papers import PAPERS
from maker import code, papers, queue, run, store

NAME = "near-uniform"
NEVER = "0" * 40


def git(folder, *words):
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with one file of code and a page."""
    (tmp_path / "src" / "eigenlens").mkdir(parents=True)
    (tmp_path / "src" / "eigenlens" / "one.py").write_text("x = 1\n")
    (tmp_path / "page.md").write_text("a\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_commit_of_pages_leaves_the_tree_of_the_code(repository):
    first, tree = code.commit(repository), code.committed_tree(repository)
    (repository / "page.md").write_text("b\n")
    assert code.committed_tree(repository) == tree
    git(repository, "commit", "-qam", "second")
    assert code.commit(repository) != first and code.tree(repository) == tree
    (repository / "src" / "eigenlens" / "one.py").write_text("x = 2\n")
    git(repository, "commit", "-qam", "third")
    assert code.tree(repository) != tree


def test_code_that_is_not_committed_is_refused_in_a_sentence(repository):
    (repository / "src" / "eigenlens" / "two.py").write_text("y = 2\n")
    with pytest.raises(el.EigenlensError, match=r"not committed \(\?\? .*two.py\)"):
        code.committed_tree(repository)
    with pytest.raises(el.EigenlensError, match="name the commit"):
        code.commit(repository.parent)


def test_figures_are_short_and_rows_are_lines():
    record = {"a": 1 / 3, "rows": [{"x": 0.1 + 0.2, "n": 12345678, "s": "°"}, {"x": None}]}
    text = store.as_text(store.rounded(record))
    assert text.splitlines() == [
        "{",
        ' "a": 0.333333,',
        ' "rows": [',
        '  {"x": 0.3, "n": 12345678, "s": "°"},',
        '  {"x": null}',
        " ]",
        "}",
    ]
    assert json.loads(text) == store.rounded(record)
    assert store.as_text(json.loads(text)) == text


def test_long_tables_name_their_columns_once(tmp_path):
    rows = [{"head": n, "value": n / 8} for n in range(501)]
    uneven = [*rows[:-1], {"head": 500}]
    record = {"result": {"tables": {"long": rows, "short": rows[:500], "uneven": uneven}}}
    store.write(tmp_path / "a.json", record)
    kept = json.loads((tmp_path / "a.json").read_text())["result"]["tables"]
    assert kept["long"]["columns"] == ["head", "value"] and kept["long"]["rows"][3] == [3, 0.375]
    assert kept["short"] == rows[:500] and kept["uneven"] == uneven
    assert store.read(tmp_path / "a.json") == record
    assert "\n     [3, 0.375],\n" in (tmp_path / "a.json").read_text()


@pytest.fixture
def tiny(monkeypatch):
    """The paper of the page on papers."""
    paper = _tiny_paper()
    monkeypatch.setitem(PAPERS, NAME, paper)
    return paper


@pytest.fixture
def done(tiny, tmp_path):
    return tiny("quick", tmp_path / "whole").record()


def test_claims_are_judged_from_the_stored_tables(done):
    kept = papers.stored(NAME, done, "quick")
    assert kept["digits"] == 6 and kept["left_out"] == [] and kept["cut_down"] == {}
    (claim,) = kept["result"]["claims"]
    least = min(row["entropy"] for row in kept["result"]["tables"]["entropies"])
    assert claim["measured"] == least == float(f"{done['claims'][0]['measured']:.6g}")
    assert set(kept["result"]) == set(done)


def test_a_claim_on_close_figures_gets_more_digits(tiny, done, monkeypatch):
    """A difference of 1e-8 is lost at six digits, and with it the verdict."""
    whole = {**done, "tables": {"entropies": [{"keys": 2, "entropy": 0.70000001}]}}
    monkeypatch.setitem(
        PAPERS,
        NAME,
        SimpleNamespace(
            shown=tiny.shown,
            thorough=None,
            charts=lambda tables: {},
            claims=lambda tables, quick: (
                el.papers.Claim(
                    *("above", "0", tables["entropies"][0]["entropy"] - 0.7, None, "above 0"),
                    "reproduced" if tables["entropies"][0]["entropy"] > 0.7 else "depends",
                    "",
                ),
            ),
        ),
    )
    whole["claims"] = [claim.record() for claim in PAPERS[NAME].claims(whole["tables"], False)]
    kept = papers.stored(NAME, whole)
    assert kept["digits"] == 9 and kept["result"]["claims"][0]["verdict"] == "reproduced"


def test_long_tables_that_nothing_reads_are_left_out(tiny, done):
    long = [{"head": number, "value": 0.5} for number in range(5000)]
    tables = {**done["tables"], "heads": long, "short": long[:3]}
    kept = papers.stored(NAME, {**done, "tables": tables}, "quick")
    assert kept["left_out"] == ["heads"]
    assert list(kept["result"]["tables"]) == ["entropies", "short"]


def test_reading_all_tables_needs_all():
    watched = papers.Watched({"a": 1, "b": 2})
    assert watched["a"] == 1 and watched.seen == {"a"}
    dict(watched.items())
    assert watched.seen == {"a", "b"}


SCRIPT = """
import json, os, pathlib, sys, time
part, whole, folder, how = sys.argv[1:]
folder = pathlib.Path(folder)
folder.mkdir(parents=True, exist_ok=True)
with (folder / "stretches").open("a") as file:
    file.write(".")
if how == "fails":
    sys.exit("no such luck")
if how == "sleeps":
    (folder / "process").write_text(str(os.getpid()))
    time.sleep(300)
if how == "goes on" and len((folder / "stretches").read_text()) < 2:
    sys.exit("interrupted")
(folder / "reproduction.json").write_text(pathlib.Path(whole).read_text())
"""


@pytest.fixture
def making(done, tmp_path, monkeypatch):
    """`make(how)` runs the tiny paper by a script that ends as it is told."""
    whole = tmp_path / "whole" / "reproduction.json"
    monkeypatch.setattr(code, "committed_tree", lambda root=None: NEVER)
    monkeypatch.setattr(code, "commit", lambda root=None: NEVER)
    settings = run.Settings(tmp_path / "build", tmp_path / "results", "quick")
    lines = []

    def make(how="works", names=(NAME,), jobs=1, tell=lines.append):
        words = lambda self: [  # noqa: E731
            *(sys.executable, "-c", SCRIPT, "part", str(whole), str(self.folder)),
            how if self.name == NAME else "fails",
        ]
        monkeypatch.setattr(run.Run, "words", words)
        lines.clear()
        return queue.make(names, settings, jobs, tell)

    return SimpleNamespace(make=make, settings=settings, lines=lines)


def test_a_paper_runs_and_its_result_says_how(making):
    assert making.make() == {}
    record = store.read(making.settings.output / f"{NAME}.json")
    assert record["command"] == f"eigenlens reproduce {NAME} --quick"
    assert record["code"] == record["commit"] == NEVER
    assert record["size"] == "quick" and record["seconds"] > 0
    assert record["machine"]["engine"] == "local" and record["versions"]["python"]
    assert record["result"]["paper"] == NAME


def test_a_run_that_was_interrupted_goes_on_and_its_seconds_add_up(making):
    assert "interrupted" in making.make("goes on")[NAME]
    mark = making.settings.build / f"{NAME}.run.json"
    first = json.loads(mark.read_text())["seconds"]
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "seconds": first + 1000}))
    assert making.make("goes on") == {}
    assert "after 17 min before" in making.lines[0]
    assert store.read(making.settings.output / f"{NAME}.json")["seconds"] >= first + 1000
    assert (making.settings.build / NAME / "stretches").read_text() == ".."


def test_an_interrupt_ends_the_papers_and_keeps_their_seconds(making):
    process = making.settings.build / NAME / "process"

    def interrupt(line):
        while not (process.is_file() and process.read_text()):
            time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        making.make("sleeps", tell=interrupt)
    assert not psutil.pid_exists(int(process.read_text()))
    mark = json.loads((making.settings.build / f"{NAME}.run.json").read_text())
    assert mark["author"]["code"] == NEVER and mark["seconds"] > 0


def test_parts_of_another_code_are_thrown_away(making, monkeypatch):
    assert making.make("goes on")
    monkeypatch.setattr(code, "committed_tree", lambda root=None: "1" * 40)
    assert making.make("goes on")  # a first stretch again
    assert "begun anew" in making.lines[0] and "another code" in making.lines[0]
    assert (making.settings.build / NAME / "stretches").read_text() == "."


def test_a_paper_that_fails_does_not_stop_the_others(making, tiny, monkeypatch):
    monkeypatch.setitem(PAPERS, "broken", tiny)
    for jobs in (1, 2):
        failed = making.make(names=("broken", NAME), jobs=jobs)
        assert list(failed) == ["broken"] and "no such luck" in failed["broken"]
        assert (making.settings.output / f"{NAME}.json").is_file()
        assert not (making.settings.output / "broken.json").exists()
        (making.settings.output / f"{NAME}.json").unlink()


def test_code_that_changes_meanwhile_makes_no_result(making, monkeypatch):
    trees = iter(["1" * 40, "2" * 40])
    monkeypatch.setattr(code, "committed_tree", lambda root=None: next(trees))
    assert "changed while" in making.make()[NAME]
    assert not (making.settings.output / f"{NAME}.json").exists()


def test_only_what_is_missing_or_stale_is_made(tmp_path):
    record = {"code": NEVER, "commit": NEVER, "size": "full", "seed": 0, "command": "c"}
    for name, own in {"sinks": {}, "fast": {"code": "1" * 40}, "gated": {"size": "quick"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**record, **own}))
    found = queue.stale(tmp_path, NEVER, ["sinks", "fast", "gated", "hybrid"])
    assert list(found) == ["fast", "gated", "hybrid"]
    assert found["hybrid"] == "missing" and "stale" in found["fast"]


def test_cheap_papers_come_first(tmp_path):
    for name, seconds in (("sinks", 5), ("fast", 500)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"seconds": seconds}))
    order = queue.in_order(["rank-collapse", "fast", "gated", "sinks"], tmp_path)
    assert order == ["sinks", "fast", "gated", "rank-collapse"]


def test_papers_with_times_are_papers_and_run_alone(making, tiny, monkeypatch):
    assert set(PAPERS) - {NAME} >= queue.TIMED | set(queue.CHEAP_FIRST)
    monkeypatch.setattr(queue, "TIMED", frozenset({"timed"}))
    for name in ("timed", "one", "two"):
        monkeypatch.setitem(PAPERS, name, tiny)
    making.make(names=("timed", "one", "two"), jobs=2)
    begun = [line.split(":")[0] for line in making.lines if "started" in line]
    ended = [n for n, line in enumerate(making.lines) if "exit" in line]
    assert begun[-1] == "timed"
    assert sum(n < making.lines.index("timed: started") for n in ended) == 2


def test_the_command_refuses_in_sentences_and_lists_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    import make

    def command(*words):
        ended = make.main(list(words))
        said = capsys.readouterr()
        return ended, said.out + said.err

    assert command("sink") == (2, f"no paper 'sink'; there are {', '.join(PAPERS)}\n")
    assert command("--quick", "sinks") == (
        2,
        "a miniature is no result; name another folder with --output\n",
    )
    if (ROOT / ".git").exists():
        found = command("--check", "--output", str(tmp_path), "sinks", "fast")
        assert found == (1, "sinks: missing\nfast: missing\n")


def test_a_benchmark_is_recorded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import record

    (tmp_path / "toy.py").write_text(
        "import sys\nfrom tables import table\ntable([{'n': int(sys.argv[2]), 'x': 1 / 3}])\n"
    )
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(code, "committed_tree", lambda root=None: NEVER)
    monkeypatch.setattr(code, "commit", lambda root=None: NEVER)
    words = ["toy", "time", "7"]
    (path,) = record.record(words, record.name_of(words), tmp_path / "kept")
    assert path.name == "toy-time.json"
    kept = store.read(path)
    assert kept["rows"] == [{"n": 7, "x": 0.333333}]
    assert kept["command"] == "python benchmarks/toy.py time 7" and kept["code"] == NEVER
    with pytest.raises(el.EigenlensError, match="no benchmark 'toys'; there are toy"):
        record.record(["toys"], "toys", tmp_path / "kept")


def test_a_picture_carries_its_digest(tmp_path):
    from PIL import Image

    path = tmp_path / "a.png"
    Image.new("RGB", (3, 2), (10, 20, 30)).save(path)
    assert mark_of(path) is None
    path.write_bytes(marked(path.read_bytes(), "abc"))
    assert mark_of(path) == "abc"
    picture = Image.open(path)
    assert picture.text == {"eigenlens-results": "abc"} and picture.getpixel((2, 1)) == (10, 20, 30)
