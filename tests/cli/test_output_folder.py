"""Without a folder's name every command works again and again.

Its result goes into a fresh folder beside the others.
"""

import inspect
from pathlib import Path

import pytest
import typer

from eigenlens import Explanation, Plan, Study
from eigenlens.cli import app
from eigenlens.cli.output_folder import choose_output_dir, latest
from tiny import some_text, tiny_bert, tiny_llama

STUDY = ("--max-inputs", 24, "--max-length", 16, "--only", "rows,moments")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bert(here):
    some_text(here / "a.txt")
    return tiny_bert(here / "tiny").name


def test_explain_works_as_often_as_it_is_asked(run, here):
    model = tiny_llama(here / "llama").name
    for number, text in enumerate(("One day", "Another day", "A third"), 1):
        done = run("explain", model, text, "--no-deletion", "--methods", "attention")
        folder = "explanation" if number == 1 else f"explanation-{number}"
        assert done.code == 0 and f"Everything is in {folder}." in done.out, done.err
        assert (f"the folder is {folder}\n" in done.err) == (number > 1)
        assert Explanation.open(folder).facts.data.name == text
    again = run(
        "explain", model, "A last one", "--no-deletion", "--methods", "attention", "--overwrite"
    )
    assert again.code == 0 and Explanation.open("explanation").facts.data.name == "A last one"
    assert run("explain", model, "x", "--no-deletion", "-o", "explanation").code == 2


@pytest.mark.slow
def test_a_study_a_plan_and_a_collapse_run_find_fresh_folders(run, here, bert):
    for folder in ("study", "study-2"):
        assert run("study", bert, "a.txt", *STUDY).code == 0
        assert Study.open(folder).length == 16
        assert (
            run(
                "plan", "study", "--budget", 0.5, "--max-inputs", 2, "--estimators", "mean,key-pca"
            ).code
            == 0
        )
        made = run(
            "collapse",
            bert,
            "a.txt",
            "--max-inputs",
            3,
            "--max-length",
            8,
            "--paths",
            0,
            "--bounds",
            0,
            "--variants",
            "SAN",
        )
        assert made.code == 0, made.err
    assert Plan.open("plan").facts.created <= Plan.open("plan-2").facts.created
    assert {path.name for path in here.iterdir() if "collapse" in path.name} == {
        "collapse",
        "collapse-2",
    }
    assert latest("plan", "plan.json") == Path("plan-2")
    measured = run("evaluate", bert, "--max-inputs", 2, "--json")
    assert measured.code == 0, measured.err
    assert not (here / "evaluation").exists()


def test_an_interrupted_study_is_not_passed_by(run, here, bert, monkeypatch):
    from eigenlens.studies import run_study as make

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(make, "run_stages", stop)
        assert run("study", bert, "a.txt", *STUDY).code == 2
    again = run("study", bert, "a.txt", *STUDY)
    assert (
        again.code == 2
        and "study holds a study that was interrupted; go on with resume=True (--resume)"
        in again.err
    )
    assert (
        run("study", bert, "a.txt", *STUDY, "--resume").code == 0
        and Study.open("study").length == 16
    )


def test_a_report_replaces_the_page_it_wrote_before(run, here, bert):
    assert run("study", bert, "a.txt", *STUDY).code == 0
    for _ in range(2):
        assert run("report", "study").code == 0
    assert (here / "report.html").is_file() and not (here / "report-2.html").exists()


def test_a_training_run_finds_a_fresh_folder(run, here):
    (here / "run.toml").write_text(
        '[task]\nname = "sort"\n[model]\nlayers = 1\nwidth = 16\nheads = 2\n[training]\nsteps ='
        " 2\nbatch = 4\n"
    )
    for folder in ("run", "run-2"):
        done = run("train", "run.toml")
        assert done.code == 0 and f"The run is in {folder};" in done.out, done.err


FILES = ["sinks/reproduction.json", "fast/reproduction.json"]


def test_benches_and_papers_share_a_folder_until_one_of_them_is_there(here):
    def fill(file):
        (here / file).parent.mkdir(parents=True, exist_ok=True)
        (here / file).touch()

    assert choose_output_dir(None, "reproduction", FILES) == Path("reproduction")
    fill("reproduction/gated/reproduction.json")
    assert choose_output_dir(None, "reproduction", FILES) == Path("reproduction")
    fill("reproduction/fast/reproduction.json")
    assert choose_output_dir(None, "reproduction", FILES) == Path("reproduction-2")
    assert choose_output_dir(None, "reproduction", FILES, resume=True) == Path("reproduction")
    assert choose_output_dir(None, "reproduction", FILES, overwrite=True) == Path("reproduction")
    fill("reproduction-2/sinks/reproduction-request.json")
    assert choose_output_dir(None, "reproduction", FILES) == Path(
        "reproduction-2"
    )  # to be gone on with
    assert choose_output_dir(None, "reproduction", FILES, resume=True) == Path("reproduction-2")
    fill("reproduction-2/sinks/reproduction.json")
    assert choose_output_dir(None, "reproduction", FILES) == Path("reproduction-3")
    assert choose_output_dir(Path("mine"), "reproduction", FILES) == Path("mine")


def test_a_folder_or_file_of_the_user_is_passed_by(here):
    (here / "study").write_text("notes")
    (here / "study-2").mkdir()
    (here / "study-2" / "notes.md").touch()
    assert choose_output_dir(None, "study", ["study.json"]) == Path("study-3")


def test_no_command_has_a_default_folder_that_is_taken_the_second_time():
    """No command has a fixed folder as its default.

    Of all commands only the page of a report is replaced.
    """
    fixed = {}
    for command in app.registered_commands:
        assert command.callback is not None
        for name, parameter in inspect.signature(command.callback).parameters.items():
            if isinstance(parameter.default, Path):
                fixed[command.callback.__name__, name] = parameter.default
    assert fixed == {("report", "output"): Path("report.html")}
    assert isinstance(app, typer.Typer)
