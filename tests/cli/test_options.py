"""One name for each thing.

What an option of a command is called, a Python call takes, with the same default, and the other way
round.
"""

import inspect

import pytest
import typer

import eigenlens as el
from eigenlens import lab
from eigenlens.bench import run_bench
from eigenlens.cli import app
from eigenlens.cli.options import GROUPS
from eigenlens.papers.paper import Paper

COMMANDS = typer.main.get_command(app).commands
CALLS = {
    "study": el.study,
    "plan": el.plan,
    "evaluate": el.evaluate,
    "collapse": el.collapse,
    "explain": el.explain,
    "report": el.report,
    "compare": el.compare,
    "bench": run_bench,
    "train": lab.run,
    "reproduce": Paper.__call__,
}
"""The Python call behind each command that has one."""

ONLY_COMMANDS = {
    "as_json": "prints the result; in Python it is there",
    "full": "prints more of the result; in Python all of it is there",
    "workers": "of the engine, which is an object in Python: el.Dask(workers=…)",
    "scheduler": "of the engine: el.Dask(scheduler=…)",
    "on_failure": "of the engine: el.Local(on_failure=…)",
    "help": "prints and ends",
}
ONLY_PYTHON = {
    "self": "the paper itself, which the command takes by name",
    "progress": "the commands show their own on standard error",
    "tokenizer": "an object",
}
ONLY_ONE_COMMAND = {
    ("bench", "benches"): "a command runs several benches, a call one: its name",
    ("bench", "load"): "in Python the file is imported",
    ("train", "example"): "prints lab.EXAMPLE and ends",
    ("reproduce", "quick"): "a size in Python",
    ("reproduce", "thorough"): "a size in Python",
    ("reproduce", "papers"): "a command runs several papers; in Python each is a call",
    ("reproduce", "engine"): "a call uses the engine around it: with el.Dask(…):",
}
ONLY_ONE_CALL = {
    ("reproduce", "size"): "the options --quick and --thorough",
    ("bench", "name"): "the command runs several: its argument benches",
    ("train", "every"): "seconds between checkpoints, for tests that stop a run",
}
OTHER_DEFAULTS = {
    ("study", "model"): "a command names its model",
    ("collapse", "model"): "a command names its model",
    ("bench", "output_dir"): "a command takes a fresh folder",
    ("train", "output_dir"): "a command takes a fresh folder",
    ("train", "config"): "a command with --example needs none",
}
ENGINES = {"engine": ("local", None)}
"""By name on the command line, an object in Python; by default both are this process."""


def taken(call):
    return dict(inspect.signature(call).parameters)


def options(name):
    return {parameter.name: parameter for parameter in COMMANDS[name].params}


def plain(default):
    """A default as a command spells it: nothing for an empty list, names with commas."""
    if default is inspect.Parameter.empty or default is None or default in ([], ()):
        return None
    if isinstance(default, (tuple, list)):
        return ",".join(map(str, default))
    return default if isinstance(default, (bool, int, float)) else str(default)


@pytest.mark.parametrize("name", CALLS)
def test_every_option_is_a_parameter_of_the_same_name_and_default(name):
    parameters = taken(CALLS[name])
    for option, given in options(name).items():
        if option in ONLY_COMMANDS or (name, option) in ONLY_ONE_COMMAND:
            assert option not in parameters or option == "engine"
            continue
        assert option in parameters, f"{name}: Python has no {option}"
        if (name, option) in OTHER_DEFAULTS:
            continue
        there, here = plain(given.default), plain(parameters[option].default)
        if option in ENGINES:
            assert (there, here) == ENGINES[option]
        elif parameters[option].kind is inspect.Parameter.VAR_POSITIONAL:
            assert given.nargs == -1
        else:
            assert there == here and type(there) is type(here), f"{name} {option}"


@pytest.mark.parametrize("name", CALLS)
def test_every_parameter_is_an_option(name):
    known = options(name)
    for parameter in taken(CALLS[name]):
        if parameter in ONLY_PYTHON or (name, parameter) in ONLY_ONE_CALL:
            assert parameter not in known
        else:
            assert parameter in known, f"the command {name} has no {parameter}"


@pytest.mark.parametrize("name", CALLS)
def test_an_option_is_spelled_as_its_parameter(name):
    for option in options(name).values():
        if option.param_type_name == "option" and option.name != "as_json":
            assert f"--{option.name.replace('_', '-')}" in option.opts


def test_exceptions_are_still_needed():
    """An exception for what is no longer there would hide the next mistake."""
    for name, option in ONLY_ONE_COMMAND:
        assert option in options(name)
    for name, parameter in [*ONLY_ONE_CALL, *OTHER_DEFAULTS]:
        assert parameter in taken(CALLS[name])
    everywhere = {option for name in CALLS for option in options(name)}
    assert set(ONLY_COMMANDS) - {"help"} <= everywhere
    assert set(ONLY_PYTHON) <= {parameter for call in CALLS.values() for parameter in taken(call)}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_one_line_an_example_and_an_explanation_with_a_default_for_every_option(name):
    command = COMMANDS[name]
    first, *_ = command.help.splitlines()
    assert first.endswith(".") and len(first) < 70
    assert f"eigenlens {name}" in command.epilog
    for parameter in command.params:
        assert parameter.help and parameter.help.endswith("."), f"{name} {parameter.name}"
        if parameter.param_type_name == "option":
            assert parameter.rich_help_panel in GROUPS, f"{name} {parameter.name}"
            is_flag_or_none = parameter.default is None or parameter.default is False
            shown = parameter.show_default and not is_flag_or_none
            assert shown or "(default: " in parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_options_in_their_groups(name, run):
    shown = run(name, "--help").out
    groups = [group for group in GROUPS if f"\n{group}:\n" in shown]
    given = {
        parameter.rich_help_panel
        for parameter in COMMANDS[name].params
        if parameter.param_type_name == "option"
    }
    assert set(groups) == given
    places = [shown.index(f"\n{group}:\n") for group in groups]
    assert places == sorted(places)
    assert shown.rstrip().splitlines()[-1].strip().startswith("eigenlens ")
