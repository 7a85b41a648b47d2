"""`eigenlens reproduce`: the table, JSON, and one sentence when something is wrong."""

import json
import sys

import pytest

from eigenlens import cli, papers
from eigenlens.papers.claims import Reproduction
from eigenlens.papers.eigen_analysis import paper as eigen_analysis
from eigenlens.papers.paper import Paper
from papers.test_claims import tables


def run(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["eigenlens", "reproduce", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return end.value.code or 0, out, err


@pytest.fixture
def made(monkeypatch):
    """A paper that takes no time, and what it was asked."""
    asked = []

    class Small(Paper):
        def __call__(self, quick, output_dir, seed, progress, **options):
            asked.append({"quick": quick, "output_dir": output_dir, "seed": seed, **options})
            found = tables()
            notes = ("something was left out",)
            judged = self.claims(found, quick)
            return Reproduction(
                "small", self.title, judged, tables=found, notes=notes, shown=self.shown
            )

    like = eigen_analysis
    small = Small(
        *("small", "A small paper", like.full, like.quick, like.measure),
        *(like.claims, like.charts, like.shown),
    )
    monkeypatch.setitem(papers.PAPERS, "small", small)
    return asked


def test_claims_are_printed_with_their_verdicts_and_drawn(monkeypatch, capsys, made, tmp_path):
    code, out, _ = run(
        monkeypatch, capsys, "small", "--quick", "-o", tmp_path, "--seed", 3, "--resume"
    )
    assert code == 0
    assert made == [
        {
            "quick": True,
            "output_dir": tmp_path / "small",
            "seed": 3,
            "resume": True,
            "overwrite": False,
        }
    ]
    assert "A small paper" in out and "Note: something was left out." in out
    assert out.count("reproduced") >= 6 and "interpolated" in out
    assert f"All tables and columns: eigenlens show {tmp_path / 'small'} --full\n" in out
    assert (tmp_path / "small" / "pictures" / "training.png").stat().st_size > 1000


def test_json_is_all_there_is_on_standard_output(monkeypatch, capsys, made, tmp_path):
    code, out, _ = run(monkeypatch, capsys, "small", "-o", tmp_path, "--json")
    record = json.loads(out)
    assert code == 0 and record["paper"] == "small"
    assert [claim["verdict"] for claim in record["claims"]] == ["reproduced"] * 6


def test_an_unknown_paper_is_one_sentence_and_nothing_runs(monkeypatch, capsys, made, tmp_path):
    code, out, err = run(monkeypatch, capsys, "small", "large", "-o", tmp_path)
    assert (code, out, made) == (2, "", [])
    assert err.startswith(
        "eigenlens: no paper 'large'; there are eigen-analysis, rank-collapse, sinks, hybrid,"
        " gated, "
    )
    assert err.endswith(", doubly-normalised, within-one-input, small\n") and err.count("\n") == 1
