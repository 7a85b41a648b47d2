"""Results that version 0.1.0 wrote still open, with the numbers it read from them."""

import json
from pathlib import Path

import pytest

import eigenlens as el

BEFORE = Path(__file__).parent / "written_before" / "0.1.0"


def test_a_study_opens():
    study = el.Study.open(BEFORE / "study")
    one = {"analysis": "rows", "level": "head", "centring": "centred", "layer": 0}
    assert study.length == 12 and len(list(study.spectra)) == 42
    assert [study.spectra.one(**one, head=head).dimension(0.9) for head in (0, 1)] == [9, 9]
    assert study.depth.curve("residual") and study.overlap(rank=4).summary()
    assert "keys" in study.diagnostics


def test_a_plan_opens():
    plan = el.Plan.open(BEFORE / "plan")
    assert plan.work == pytest.approx(0.3008355014026165, abs=1e-12)
    assert len(plan.choices) == 4 and plan.examples is not None


def test_a_plan_of_blocks_opens():
    plan = el.Plan.open(BEFORE / "block-plan")
    assert plan.sparse is not None and plan.work == pytest.approx(0.79296875, abs=1e-12)
    stored = json.loads((BEFORE / "block-plan" / "plan.json").read_text())["heads"]
    assert [choice.settings for choice in plan.choices] == [
        {"threshold": head["settings"]["bar"]} for head in stored
    ]


def test_an_evaluation_opens():
    stored = json.loads((BEFORE / "evaluation" / "evaluation.json").read_text())
    opened = el.Evaluation.open(BEFORE / "evaluation")
    assert len(opened.record()["heads"]) == len(stored["heads"]) > 0


def test_a_collapse_run_opens():
    rows = el.Collapse.open(BEFORE / "collapse").rows()
    assert [row["depth"] for row in rows] == [0, 1, 2]
    assert rows[2]["full"] == pytest.approx(0.40956691128704936, abs=1e-12)
    assert rows[2]["SAN"] == pytest.approx(0.2856496688000692, abs=1e-12)


def test_an_explanation_opens():
    found = el.Explanation.open(BEFORE / "explanation")
    assert list(found.tokens) == ["[CLS]", "a", "small", "text", ".", "[SEP]"]
    assert len(found.methods) == 10 and "cosine 0.94" in found.sentence


@pytest.mark.parametrize(
    "kind, result", [("study", el.Study), ("plan", el.Plan), ("evaluation", el.Evaluation)]
)
def test_a_format_that_is_not_read_is_refused_with_the_version_that_wrote_it(
    tmp_path, kind, result
):
    stored = json.loads((BEFORE / kind / f"{kind}.json").read_text())
    versions = {"versions": {"eigenlens": "0.0.7"}}
    (tmp_path / f"{kind}.json").write_text(json.dumps({**stored, **versions, "format": 0}))
    with pytest.raises(el.EigenlensError, match=r"has format 0, written by eigenlens 0\.0\.7, and"):
        result.open(tmp_path)
    (tmp_path / f"{kind}.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(el.EigenlensError, match="written by an unknown version"):
        result.open(tmp_path)
