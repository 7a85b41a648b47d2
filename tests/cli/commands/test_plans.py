"""Plans as a user types them: made, shown and evaluated."""

import re
from pathlib import Path

import pytest

from cli.commands.typed import strict
from eigenlens import Evaluation
from tiny import some_text


def test_a_plan_is_made_shown_and_evaluated(run, world, tmp_path):
    made = run(
        "plan", world.study, "--budget", 0.4, "-o", tmp_path / "plan", "--max-inputs", 4, "--json"
    )
    assert made.code == 0
    record = strict(made.out)
    assert {"model", "length", "target", "heads", "curve", "parts", "pictures"} <= set(record)
    assert [(h["layer"], h["head"]) for h in record["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(Path(path).stat().st_size > 1000 for path in record["pictures"])
    shown = run(
        "plan",
        world.study,
        "--error",
        0.1,
        "-o",
        tmp_path / "plan",
        "--max-inputs",
        4,
        "--overwrite",
    ).out
    assert re.search(
        r"Simulated: 4 heads \(.*\) would take \S+ % of the work of exact scores", shown
    )
    again = run("show", tmp_path / "plan", "--pictures", tmp_path / "pictures").out
    assert again.startswith(shown.partition("\nThe plan is in")[0])
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"plan.png", "plan.svg"}
    record = strict(run("show", tmp_path / "plan", "--json").out)
    assert record["heads"] == strict((tmp_path / "plan" / "plan.json").read_text())["heads"]
    assert record["pictures"] == []
    found = strict(
        run("evaluate", world.model, world.text, "--plan", tmp_path / "plan", "--json").out
    )
    assert {row["measure"] for row in found["summary"]} >= {
        "cosine of the embeddings",
        "KL of the patterns",
    }
    assert not (tmp_path / "evaluation").exists()
    table = run(
        "evaluate", world.model, "--plan", tmp_path / "plan", "-o", tmp_path / "evaluation"
    ).out
    assert "total variation of the patterns" in table and "so no seconds are shown" in table
    assert "seconds of the whole passes" not in table
    assert (
        Evaluation.open(tmp_path / "evaluation").sentence in table
        and str(tmp_path / "evaluation") in table
    )
    forced = run(
        "evaluate",
        world.model,
        "--plan",
        world.plan,
        "-o",
        tmp_path / "evaluation",
        "--overwrite",
        "--json",
    )
    assert strict(forced.out) == Evaluation.open(tmp_path / "evaluation").record()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_plan_is_evaluated_on_one_to_three_inputs_of_other_data_or_another_length(
    run, world, tmp_path, number
):
    other = some_text(tmp_path / "other.txt", documents=5)
    for given in ((other,), (world.text, "--max-length", 12), (other, "--padding")):
        done = run(
            "evaluate", world.model, *given, "--plan", world.plan, "--max-inputs", number, "--json"
        )
        assert done.code == 0, done.err
        found = strict(done.out)
        assert found["inputs"] == number and found["length"] == (
            12 if "--max-length" in given else 16
        )
        assert (
            0
            < next(
                row
                for row in found["summary"]
                if row["measure"] == "total variation of the patterns"
            )["planned"]
            < 1
        )
