"""A training run: its result, a killed one that ends as if it had not been, and models that are
kept.
"""

import json

import pytest
import torch

from eigenlens import lab
from eigenlens.errors import EigenlensError
from eigenlens.lab import RunFile, TrainingRun, evaluate, run
from lab.small_run import SMALL, changed


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run(SMALL, tmp_path_factory.mktemp("run") / "out")


def test_the_result_is_what_the_models_do(done):
    assert [row["step"] for row in done.rows()] == [20, 40, 20, 40] and [
        row["seed"] for row in done.rows()
    ] == [0, 0, 3, 3]
    task = RunFile.of(SMALL).build()
    losses = {end["seed"]: (end["loss"], end["accuracy"]) for end in done.ends()}
    for seed in (0, 3):
        assert evaluate(done.model(seed), task) == pytest.approx(losses[seed], rel=1e-6)
        assert losses[seed][0] < 2.2  # ln 10 is 2.3
    assert losses[0] != losses[3]
    assert (
        f"{sum(loss for loss, _ in losses.values()) / 2:.4g}" in done.sentence
        and "2 seeds" in done.sentence
    )
    assert done.stored["weights"] == sum(p.numel() for p in done.model().parameters())
    assert done.plot().to_dict()["mark"]["type"] == "line"
    assert "<svg" in done._repr_html_()
    json.dumps(done.record(), allow_nan=False)


def test_a_folder_opens_to_the_same_result(done):
    opened = lab.open(done.folder)
    assert (
        opened.rows() == done.rows()
        and opened.sentence == done.sentence
        and opened.run == RunFile.of(SMALL)
    )
    assert opened.config == RunFile.of(SMALL).config(RunFile.of(SMALL).build())
    with pytest.raises(EigenlensError, match="no model of seed 7; there are 0, 3"):
        opened.model(7)
    assert not (done.folder / "seed-0" / "checkpoint.safetensors").exists()


def test_folders_that_hold_no_run_are_refused(done, tmp_path):
    with pytest.raises(EigenlensError, match="no finished training run"):
        TrainingRun.open(tmp_path)
    (tmp_path / "run.json").write_text('{"run": 1}')
    with pytest.raises(EigenlensError, match="it lacks config"):
        TrainingRun.open(tmp_path)
    with pytest.raises(EigenlensError, match="is not a training run"):
        run(SMALL, tmp_path)
    with pytest.raises(EigenlensError, match="already holds a training run"):
        run(SMALL, done.folder)
    with pytest.raises(EigenlensError, match="begun with another training"):
        run(changed("training", steps=41), done.folder, resume=True)


def test_a_killed_run_ends_as_if_it_had_not_been(done, tmp_path):
    class Killed(Exception):
        pass

    def kill(label, step, total):
        if (label, step) == ("training seed 3", 27):
            raise Killed

    with pytest.raises(Killed):
        run(SMALL, tmp_path / "out", progress=kill, every=0.0)
    assert (tmp_path / "out/seed-3/checkpoint.safetensors").is_file()
    seen = []
    again = run(
        SMALL,
        tmp_path / "out",
        resume=True,
        progress=lambda label, step, total: seen.append((label, step)),
    )
    # seed 0 is not trained again
    assert seen[0] == ("training seed 3", 27)
    assert {label for label, _ in seen} == {"training seed 3"}
    untimed = [
        {key: row[key] for key in ("seed", "step", "loss", "accuracy")} for row in again.rows()
    ]
    assert untimed == [
        {key: row[key] for key in ("seed", "step", "loss", "accuracy")} for row in done.rows()
    ]
    for seed in (0, 3):
        left, right = again.model(seed).state_dict(), done.model(seed).state_dict()
        assert left.keys() == right.keys() and all(
            torch.equal(left[name], right[name]) for name in left
        )


def test_the_callers_random_numbers_are_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run({**SMALL, "training": {"steps": 1}}, tmp_path / "out")
    assert torch.equal(torch.rand(3), expected)


def test_vectors_have_a_loss_and_no_accuracy(tmp_path):
    content = {
        "task": {"name": "circle", "points": 50},
        "model": {"width": 8, "heads": 2, "layers": 1},
        "training": {"steps": 3},
    }
    done = run(content, tmp_path / "out")
    assert (
        done.ends()[0]["accuracy"] is None
        and done.ends()[0]["loss"] > 0
        and "right" not in done.sentence
    )
    json.dumps(done.record(), allow_nan=False)


def test_a_run_that_diverges_says_so(tmp_path):
    content = changed("training", rate=1e9, steps=20, seeds=[0])
    done = run(content, tmp_path / "out")
    assert done.ends()[0]["loss"] is None or done.ends()[0]["loss"] > 2
    broken = TrainingRun(
        {
            **done.stored,
            "seeds": [{"seed": 0, "curve": [{"step": 20, "loss": None, "accuracy": None}]}],
        },
        done.folder,
    )
    assert "diverged" in broken.sentence


def test_a_run_whose_mechanism_was_renamed_still_opens(tmp_path):
    """Version 0.1.0 called spectral-gap-removal gapless."""
    asked = json.loads(json.dumps(SMALL))
    asked["model"]["mechanism"] = "spectral-gap-removal"
    done = run(asked, tmp_path / "out")
    file = tmp_path / "out" / "run.json"
    file.write_text(file.read_text().replace('"spectral-gap-removal"', '"gapless"'))
    assert '"gapless"' in file.read_text()
    before, after = done.model(), TrainingRun.open(tmp_path / "out").model()
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters()))
    with pytest.raises(EigenlensError, match="gapless is now called spectral-gap-removal"):
        run({**asked, "model": {**asked["model"], "mechanism": "gapless"}}, tmp_path / "other")
