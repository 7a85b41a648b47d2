"""One file a run: what it says, and what is wrong with it in one sentence."""

import tomllib
from dataclasses import fields

import pytest

from eigenlens.errors import EigenlensError
from eigenlens.lab import EXAMPLE, TASKS, Config, RunFile, TrainingSettings, run
from eigenlens.lab.run_file import BY_TASK, task_keys
from lab.small_run import SMALL, changed, toml


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
            r"\[training\] seeds is a list in which each entry is a whole number, not 3",
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
        (
            {**SMALL, "task": {"name": "repeated", "letters": 90}},
            r"\[task\] from an alphabet of .* drawn, not 90",
        ),
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
