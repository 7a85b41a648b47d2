"""Commands that are printed to be pasted work when pasted."""

import re
import shlex
from pathlib import Path

import pytest

from eigenlens import Collapse, EigenlensError, Evaluation, Explanation, Plan, Study, load
from eigenlens.bench import Bench
from eigenlens.lab import TrainingRun
from eigenlens.models.facts import ModelFacts
from eigenlens.shell import command
from tiny import some_text, tiny_bert


def pasted(printed):
    """The arguments of the command in the last line of a text, as a shell takes it apart."""
    last = printed.strip().splitlines()[-1]
    name, *args = shlex.split(last[last.index(": eigenlens ") + 2 :])
    assert name == "eigenlens"
    return args


@pytest.mark.slow
@pytest.mark.parametrize("home", ['it\'s a "model" & more', "plain"])
def test_the_commands_behind_a_study_and_a_plan_run_as_they_are_printed(
    run, tmp_path, monkeypatch, home
):
    (tmp_path / home).mkdir()
    monkeypatch.chdir(tmp_path / home)
    model, text = tiny_bert(Path("my model's; $HOME")), some_text(Path("a 'text'.txt"))
    made = run(
        "study",
        model,
        text,
        "-o",
        "-a study",
        "--max-inputs",
        24,
        "--max-length",
        16,
        "--only",
        "rows,moments",
    )
    assert made.code == 0, made.err
    page = run(*pasted(made.out))
    assert page.code == 0 and "report.html" in page.out, page.err
    more = made.out.splitlines()[-3]
    shown = run(*pasted(more))
    assert shown.code == 0 and "my model's; $HOME" in shown.out
    planned = run("plan", "./-a study", "--budget", 0.3, "--max-inputs", 4, "-o", 'the "plan"')
    assert planned.code == 0, planned.err
    assert Path(pasted(planned.out)[1]) == model
    measured = run(*pasted(planned.out), "--max-inputs", "4")
    assert measured.code == 0 and "cosine of the embeddings" in measured.out, measured.err


def test_the_place_of_a_model_is_where_it_can_be_loaded_from(tmp_path):
    folder = tiny_bert(tmp_path / "e5")
    facts = load(folder).facts
    assert facts.name == "e5" and facts.load_from == folder
    assert load(facts.load_from).facts == facts == ModelFacts.from_record(facts.record())
    assert ModelFacts("minilm", source="catalogue").load_from == "minilm"
    assert ModelFacts("org/name", source="hub", place="org/name").load_from == "org/name"


@pytest.mark.parametrize(
    "kind", [Study, Plan, Evaluation, Collapse, Explanation, TrainingRun, Bench]
)
def test_a_folder_without_the_result_says_how_to_make_one_there(kind, tmp_path):
    """With capital letters for what the user has to say, and the folder as it was given."""
    folder = tmp_path / "not yet's"
    folder.mkdir()
    with pytest.raises(EigenlensError) as told:
        kind.open(folder)
    args = pasted(str(told.value))
    assert Path(args[args.index("-o") + 1]) == (folder.parent if kind is Bench else folder)
    assert all(re.fullmatch(r"[A-Z]+|[a-z.0-9-]+", arg) for arg in args if "/" not in arg)


def test_a_path_is_not_taken_for_an_option():
    assert command("show", Path("-o")) == "eigenlens show ./-o"
    assert shlex.split(command("show", Path("a b'c"), "--x"))[2:] == ["a b'c", "--x"]
