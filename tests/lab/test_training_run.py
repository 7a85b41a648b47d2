"""One file a run: what is wrong with it is named, a killed run ends as if it had not been, and its
models are kept.
"""

import json
import tomllib
from dataclasses import fields

import pytest
import torch
from typer.testing import CliRunner

from eigenlens import lab
from eigenlens.cli import app
from eigenlens.errors import EigenlensError
from eigenlens.lab import (
    EXAMPLE,
    TASKS,
    Config,
    RunFile,
    TrainingRun,
    TrainingSettings,
    evaluate,
    run,
)
from eigenlens.lab.run_file import BY_TASK, task_keys

SMALL = {
    "task": {"name": "sort", "train": 200, "test": 50},
    "model": {
        "layers": 2,
        "width": 16,
        "heads": 2,
        "mechanism": [["softmax", 1], ["local", 1]],
        "gate": "G1-head",
    },
    "training": {
        "steps": 40,
        "batch": 16,
        "rate": 5e-3,
        "warmup": 5,
        "measure": 20,
        "seeds": [0, 3],
    },
}
SMALL["model"]["mechanism_settings"] = {"local": {"window": 3}}


def changed(section, **keys):
    return {**SMALL, section: {**SMALL[section], **keys}}


def toml(content):
    """Two levels, and tables of settings below them."""
    lines = []
    for section, keys in content.items():
        lines.append(f"[{section}]")
        lines += [
            f"{key} = {json.dumps(value)}"
            for key, value in keys.items()
            if not isinstance(value, dict)
        ]
        for name, settings in keys.get("mechanism_settings", {}).items():
            lines.append(f"[{section}.mechanism_settings.{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run(SMALL, tmp_path_factory.mktemp("run") / "out")


def test_a_file_says_what_its_content_says(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(toml(SMALL))
    assert RunFile.read(file) == RunFile.of(SMALL)
    assert RunFile.of(RunFile.of(SMALL).record()) == RunFile.of(SMALL)
    assert RunFile.of(SMALL).with_steps(7).training.steps == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"tasks": {}}, "no key 'tasks'; there are task, model, training"),
        ({"task": 3}, "the file task is a table, not 3"),
        ({"task": {}}, r"\[task\] has no name; there are next-bytes"),
        (changed("task", name="chess"), "no task 'chess'; there are next-bytes"),
        (changed("task", letters=3), r"\[task\] has no key 'letters'; there are train, test, seed"),
        (changed("task", train="many"), r"\[task\] train is a whole number, not 'many'"),
        (changed("model", layer=3), r"\[model\] has no key 'layer'"),
        (changed("model", layers=2.5), r"\[model\] layers is a whole number, not 2.5"),
        (changed("model", layers=True), r"\[model\] layers is a whole number, not True"),
        (changed("model", norm="yes"), r"\[model\] norm is true or false, not 'yes'"),
        (
            changed("model", activation="tanh"),
            r"\[model\] activation is 'gelu' or 'relu', not 'tanh'",
        ),
        (changed("model", mechanism=3), r"\[model\] mechanism is a text or a list, not 3"),
        (changed("task", test=0), r"\[task\] test is at least 1, not 0"),
        (changed("task", seed=-1), r"\[task\] seed is at least 0, not -1"),
        (
            changed("training", seeds=[2**31]),
            r"\[training\] seeds is a number of at most 2,147,483,647",
        ),
        (changed("training", rate=float("inf")), r"\[training\] rate is a number of at most"),
        (changed("model", size=float("nan")), r"\[model\] size is a number of at most"),
        (
            changed("model", mechanism_settings={"local": 3}),
            r"\[model\] mechanism_settings is a table",
        ),
        (changed("model", vocabulary=10), r"\[model\] vocabulary is set by the task sort"),
        ({**SMALL, "training": {}}, r"\[training\] has no steps"),
        (changed("training", step=3), r"\[training\] has no key 'step'"),
        (changed("training", seed=3), r"\[training\] has no key 'seed'"),
        (changed("training", rate="fast"), r"\[training\] rate is a number, not 'fast'"),
        (
            changed("training", seeds=3),
            r"\[training\] seeds is a list of a whole number each, not 3",
        ),
        (changed("training", seeds=[]), r"different numbers from 0 on, not \[\]"),
        (changed("training", seeds=[1, 1]), "different numbers"),
        (changed("training", batch=0), r"\[training\] batch is at least 1, and finite, not 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(content, message):
    with pytest.raises(EigenlensError, match=message):
        RunFile.of(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            changed("model", heads=3, mechanism="softmax"),
            r"\[model\] a width of 16 does not divide into 3 heads",
        ),
        (changed("model", mechanism="hardmax"), r"\[model\] no mechanism 'hardmax'"),
        ({**SMALL, "task": {"name": "repeated", "letters": 90}}, r"\[task\] 90 different letters"),
        (
            {**SMALL, "task": {"name": "next-bytes", "data": "nowhere.txt"}},
            r"\[task\] no such data: 'nowhere.txt'",
        ),
        (
            {**SMALL, "task": {"name": "next-bytes"}, "model": {"causal": False}},
            "needs a causal model",
        ),
        (changed("training", device="abacus"), r"the device 'abacus' cannot be used"),
    ],
)
def test_what_cannot_run_leaves_no_folder(content, message, tmp_path):
    with pytest.raises(EigenlensError, match=message):
        run(content, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(EigenlensError, match=r"none.toml cannot be read: No such file.*--example"):
        RunFile.read(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[task\nname = 3")
    with pytest.raises(EigenlensError, match=r"bad.toml is not TOML"):
        RunFile.read(bad)
    bad.write_text(toml(changed("training", steps="all")))
    with pytest.raises(EigenlensError, match=r"bad.toml: \[training\] steps is a whole number"):
        RunFile.read(bad)


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
        if (label, step) == ("seed 3", 27):
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
    assert seen[0] == ("seed 3", 27) and {label for label, _ in seen} == {"seed 3"}
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


def test_the_example_has_every_key_and_its_defaults_are_the_real_ones():
    assert RunFile.of(tomllib.loads(EXAMPLE)).task == "next-bytes"
    everything = "\n".join(
        line.removeprefix("# ") for line in EXAMPLE.splitlines() if "=" in line or "[" in line
    )
    content = tomllib.loads(
        everything.partition("\n")[2] if everything.startswith("A training") else everything
    )
    given = tomllib.loads(EXAMPLE)
    model = {field.name: field.default for field in fields(Config) if field.name not in BY_TASK}
    training = {
        field.name: field.default for field in fields(TrainingSettings) if field.name != "seed"
    }
    assert set(content["model"]) == set(model) and set(content["training"]) == {
        *training,
        "seeds",
        "device",
    }
    assert set(content["task"]) == {"name", *task_keys("next-bytes")}
    shown = {
        "rank",
        "value_width",
        "mlp_width",
        "gate",
        "fusion",
        "causal",
        "patience",
        "mechanism_settings",
    }  # none unless given
    for section, defaults in (("model", model), ("training", training)):
        for key in set(content[section]) - set(given[section]) - shown - {"device"}:
            assert content[section][key] == defaults[key], key
    assert all(name in EXAMPLE for name in TASKS)


def call(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def test_the_command_trains_and_prints_what_it_found(tmp_path):
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(toml(SMALL))
    done = call(file, "-o", out, "--steps", 5)
    assert done.exit_code == 0, done.output
    assert "held-out loss" in done.stdout and (out / "pictures/loss.png").is_file()
    with_json = call(file, "-o", out, "--steps", 5, "--resume", "--json")
    found = json.loads(with_json.stdout)
    assert found["run"]["training"]["steps"] == 5 and [one["steps"] for one in found["seeds"]] == [
        5,
        5,
    ]
    assert set(found) == {
        "run",
        "config",
        "versions",
        "weights",
        "multiply_adds",
        "seeds",
        "sentence",
        "pictures",
    }


def test_an_interrupted_command_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    file = tmp_path / "run.toml"
    file.write_text(toml(SMALL))
    monkeypatch.setattr(lab, "run", interrupted)
    assert "--resume goes on" in str(call(file, "-o", tmp_path / "out").exception)


def test_the_command_prints_an_example_that_it_can_read(tmp_path):
    printed = call("--example")
    assert printed.exit_code == 0 and printed.stdout == EXAMPLE
    assert "model" in tomllib.loads(printed.stdout)


def test_errors_of_the_command_are_one_sentence(warm, tmp_path):
    done = warm("train", tmp_path / "no.toml")
    assert (
        done.returncode == 2
        and done.stderr.count("\n") == 1
        and "no.toml cannot be read" in done.stderr
    )
    assert isinstance(call().exception, EigenlensError) and "--example" in str(call().exception)


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
