"""`eigenlens reproduce`: the table, JSON, sizes, and one sentence when something is wrong."""

import json
import sys
from dataclasses import replace

import pytest

from eigenlens import cli, papers
from papers.small_paper import Scale, small_paper


def run(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["eigenlens", "reproduce", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return end.value.code or 0, out, err


@pytest.fixture
def small(monkeypatch):
    made = small_paper(thorough=Scale((16, 64, 256)))
    monkeypatch.setitem(papers.PAPERS, "small", made)
    return made


def test_claims_are_printed_with_their_verdicts_and_drawn(monkeypatch, capsys, small, tmp_path):
    code, out, _ = run(monkeypatch, capsys, "small", "--quick", "-o", tmp_path, "--seed", 3)
    assert code == 0
    assert "A small paper" in out and "Note: something was left out." in out
    assert "not reproduced" in out and "out of reach" in out
    assert "Reproduced if at least 1. Least of all." in out
    assert "Not judged: it needs a model of 7 billion parameters." in out
    assert f"All tables and columns: eigenlens show {tmp_path / 'small'} --full\n" in out
    assert (tmp_path / "small" / "pictures" / "entropy.png").stat().st_size > 1000
    assert json.loads((tmp_path / "small" / "reproduction.json").read_text())["settings"] == {
        "paper": "small",
        "seed": 3,
        "keys": [16],
        "models": [],
    }


def test_json_is_all_there_is_on_standard_output(monkeypatch, capsys, small, tmp_path):
    code, out, _ = run(monkeypatch, capsys, "small", "-o", tmp_path, "--json")
    record = json.loads(out)
    assert code == 0 and record["paper"] == "small"
    assert [claim["verdict"] for claim in record["claims"]] == [
        "reproduced",
        "not reproduced",
        "out of reach",
    ]
    assert [bool(claim["reason"]) for claim in record["claims"]] == [False, True, False]
    assert all(claim["criterion"] for claim in record["claims"])


@pytest.mark.parametrize(
    ("given", "keys"),
    [(["--quick"], [16]), ([], [16, 64]), (["--thorough"], [16, 64, 256])],
)
def test_a_run_has_three_sizes(monkeypatch, capsys, small, tmp_path, given, keys):
    code, out, _ = run(monkeypatch, capsys, "small", "-o", tmp_path, "--json", *given)
    assert code == 0 and json.loads(out)["settings"]["keys"] == keys


def test_thorough_is_full_where_nothing_was_cut_down(monkeypatch, capsys, small, tmp_path):
    monkeypatch.setitem(papers.PAPERS, "small", replace(small, thorough=None))
    code, out, _ = run(monkeypatch, capsys, "small", "-o", tmp_path, "--json", "--thorough")
    assert code == 0 and json.loads(out)["settings"]["keys"] == [16, 64]


def test_a_run_is_not_quick_and_thorough(monkeypatch, capsys, small, tmp_path):
    code, out, err = run(monkeypatch, capsys, "small", "-o", tmp_path, "--quick", "--thorough")
    assert (code, out) == (2, "")
    assert err == "eigenlens: give --quick or --thorough, not both\n"
    assert not any(tmp_path.iterdir())


def test_a_run_goes_on_with_the_same_size_alone(monkeypatch, capsys, small, tmp_path):
    run(monkeypatch, capsys, "small", "-o", tmp_path, "--quick")
    code, _, _ = run(monkeypatch, capsys, "small", "-o", tmp_path, "--quick", "--resume")
    assert code == 0
    code, _, err = run(monkeypatch, capsys, "small", "-o", tmp_path, "--thorough", "--resume")
    assert code == 2 and "was begun with another keys" in err


def test_an_unknown_paper_is_one_sentence_and_nothing_runs(monkeypatch, capsys, small, tmp_path):
    code, out, err = run(monkeypatch, capsys, "small", "large", "-o", tmp_path)
    assert (code, out) == (2, "") and not any(tmp_path.iterdir())
    assert err.startswith(
        "eigenlens: no paper 'large'; there are eigen-analysis, rank-collapse, sinks, hybrid,"
        " gated, "
    )
    assert err.endswith(", small\n") and err.count("\n") == 1
