"""The demo tells a story in at most two screens, and ends with the page."""

import json

import pytest

from eigenlens.cli import demo

LINES = 2 * 25
QUESTIONS = ("low-dimensional", "heads do", "left out", "seconds", "tokens")


@pytest.fixture(autouse=True)
def tiny(monkeypatch, world):
    monkeypatch.setattr(demo, "MODEL", str(world.model))


def test_two_screens_of_questions_and_answers_that_end_with_the_page(run, tmp_path):
    folder = tmp_path / "demo"
    done = run("demo", "-o", folder, "--max-inputs", 24)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) <= LINES
    assert all(len(line) <= 100 for line in lines if str(folder) not in line)
    asked = [line for line in lines if line[1:2] == "."]
    assert len(asked) == 5 and all(word in line for word, line in zip(QUESTIONS, asked))
    shown = [line.split()[2] for line in lines if line.startswith("  $ eigenlens ")]
    assert shown == ["study", "show", "plan", "evaluate", "plan", "collapse"]
    assert all((folder / kind / f"{kind}.json").exists() for kind in ("study", "plan", "collapse"))
    assert (folder / "fast-plan" / "plan.json").exists()
    answers = " ".join(line.strip() for line in lines)
    assert "Simulated: 4 heads" in answers and "so no seconds are shown" in answers
    assert "no plan pays" in answers and "It pays for longer inputs: over 4,096 tokens" in answers
    assert lines[-1] == f"Look at the page: {folder / 'report.html'}"
    assert (folder / "report.html").stat().st_size > 100_000
    stages = done.err.splitlines()
    assert "reading 24 texts" in stages and len(stages) == len(set(stages))
    assert not any(line.split(": ")[-1][:1].isdigit() for line in stages)


def test_json_holds_all_results(run, tmp_path):
    done = run("demo", "-o", tmp_path / "demo", "--max-inputs", 24, "--json")
    record = json.loads(done.out)
    assert {
        "heads",
        "plan",
        "fast_plan",
        "evaluation",
        "collapse",
        "report",
        "pictures",
    } <= record.keys()
