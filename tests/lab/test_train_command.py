"""The command `train`: what it prints, how it is interrupted, and how it refuses."""

import json
import tomllib

from typer.testing import CliRunner

from eigenlens import lab
from eigenlens.cli import app
from eigenlens.errors import EigenlensError
from eigenlens.lab import EXAMPLE
from lab.small_run import SMALL, toml


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
