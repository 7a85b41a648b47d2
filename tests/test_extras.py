"""What an extra installs is asked for before any work, with the command that installs it."""

import ast
import json
import tomllib
from pathlib import Path

import pytest

from base_installation import SOURCE, make_base, run_base
from eigenlens import EigenlensError
from eigenlens.data.datasets import DATASETS
from eigenlens.data.needs import names_of_scale
from eigenlens.extras import EXTRAS, needs
from eigenlens.models.catalogue import MODELS
from eigenlens.papers import PAPERS, over_smoothing

ASK = """
import contextlib, io, json, sys
import eigenlens.cli as cli
from eigenlens.run.parts import Parts
from eigenlens.data import datasets
from eigenlens.models import catalogue

class Started(Exception):
    pass

def begin(*args, **options):
    raise Started

Parts.held = Parts.begin = catalogue.fetch = datasets.fetch = begin

def ask(*args):
    sys.argv = ["eigenlens", *args]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            cli.main()
    except Started:
        return ["started", ""]
    except SystemExit as end:
        return [end.code, said.getvalue()]
    except Exception as error:
        return [repr(error), said.getvalue()]

print(json.dumps({" ".join(args): ask(*args) for args in json.loads(sys.argv[1])}))
"""
ALWAYS = {
    "reproduce convex-duality --quick": "onnx and Pillow",
    "reproduce explainability --quick": "onnx and Pillow",
    "reproduce over-smoothing --quick": "scikit-learn",
    "reproduce sinks --quick": "gguf and accelerate",
    "reproduce sinks": "gguf and accelerate",
    "reproduce rank-collapse": "gguf, accelerate, onnx, Pillow and scikit-learn",
    "reproduce --quick": "onnx",
    "bench quality": "scikit-learn",
    "bench spectra --quick": "scikit-learn",
    "bench choose": "scikit-learn",
    "bench damage": "gguf, accelerate, onnx, Pillow and scikit-learn",
    "train run.toml": "scikit-learn",
    "study dinov2-small photos": "onnx and Pillow",
    "study dinov2-small": "onnx and Pillow",
    "explain dinov2-small cat.png": "onnx and Pillow",
    "collapse flan-t5-small": "onnx",
    "study minilm --engine dask --workers 2": "dask and distributed",
    "reproduce gated --engine dask --workers 2": "dask and distributed",
}
STARTS = {
    "reproduce gated",
    "reproduce gated --quick",
    "reproduce rank-collapse --quick",
    "reproduce hybrid",
    "bench speed",
    "bench damage --quick",
    "study minilm",
    "study stories15m",
    "study whisper-tiny-en reviews",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def answers(base, tmp_path_factory):
    """What every command that may need an extra says where there is none, up to where its work
    would begin.
    """
    here = tmp_path_factory.mktemp("here")
    (here / "run.toml").write_text('[task]\nname = "digits"\n[training]\nsteps = 3\n')
    papers = [f"reproduce {name}{quick}" for name in PAPERS for quick in ("", " --quick")]
    models = [f"study {name} reviews" for name in MODELS]
    data = [
        f"study minilm {name}"
        for name in DATASETS
        if DATASETS[name].source or DATASETS[name].libraries
    ]
    asked = sorted({*papers, *models, *data, *ALWAYS, *STARTS})
    code = f"import os; os.chdir({str(here)!r})\n{ASK}"
    done = run_base(
        base,
        "-c",
        code,
        json.dumps([one.split() for one in asked]),
        EIGENLENS_CACHE=str(here / "cache"),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_extras_every_command_begins_its_work_or_names_what_to_install(answers):
    for asked, (code, message) in answers.items():
        if code != "started":
            assert code == 2, (asked, code, message)
            assert message.startswith("eigenlens: ") and message.count("\n") == 1, (asked, message)
            assert "pip install 'eigenlens[" in message, (asked, message)


@pytest.mark.parametrize(("asked", "libraries"), ALWAYS.items())
def test_the_libraries_that_are_missing_are_named(answers, asked, libraries):
    code, message = answers[asked]
    assert code == 2 and f"needs {libraries}; install " in message


@pytest.mark.parametrize("asked", sorted(STARTS))
def test_what_needs_no_extra_begins(answers, asked):
    assert answers[asked] == ["started", ""]


def test_the_table_of_extras_is_that_of_the_project():
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, libraries in EXTRAS.items():
        assert sorted(name.lower() for name in libraries.values()) == sorted(
            line.split(">")[0] for line in project[extra]
        )


def test_libraries_of_two_extras_come_with_one_command():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eigenlens.extras.find_spec", lambda name: None)
        with pytest.raises(EigenlensError) as raised:
            needs("onnx", "PIL", "onnx", what="the model")
    assert (
        str(raised.value) == "the model needs onnx and Pillow; install them with: pip install"
        " 'eigenlens[catalogue,vision]'"
    )
    needs("json", "email.message", what="nothing")


THROUGH_THE_ENGINE = {"run/folding.py", "run/tasks.py", "_started"}
"""Where the Dask engine is running already."""


def test_an_extra_is_asked_for_wherever_it_is_imported():
    """In the function that imports a library of an extra, `needs` names it first."""
    libraries = {name.split(".")[0]: name for brings in EXTRAS.values() for name in brings}
    seen = 0
    for path in (SOURCE / "eigenlens").rglob("*.py"):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += (
                [node.module]
                if isinstance(node, ast.ImportFrom) and not node.level and node.module
                else []
            )
            for library in {name.split(".")[0] for name in names} & set(libraries):
                around = [f for f in functions if f.lineno < node.lineno <= (f.end_lineno or 0)]
                if THROUGH_THE_ENGINE & {
                    str(path.relative_to(SOURCE / "eigenlens")),
                    *(f.name for f in around),
                }:
                    continue
                asked = {
                    arg.value
                    for call in ast.walk(around[-1])
                    if isinstance(call, ast.Call)
                    and getattr(call.func, "id", "") == "needs"
                    and call.lineno < node.lineno
                    for arg in call.args
                }
                assert libraries[library] in asked, f"{path}, line {node.lineno}"
                seen += 1
    assert seen >= 8


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_says_all_that_it_reads(name):
    """What the files of a paper name of the catalogue is among what it says that it reads, full or
    quick.
    """
    from eigenlens import papers

    module = next(
        m
        for m in vars(papers).values()
        if getattr(m, "__name__", "").endswith(name.replace("-", "_"))
    )
    reads = module.paper.reads
    message = {*reads(module.FULL), *reads(module.QUICK)}
    for path in Path(module.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load":
                assert (
                    not isinstance(node.args[0], ast.Constant) or node.args[0].value in message
                ), (
                    path,
                    node.lineno,
                )
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Digits":
                assert "digits" in message
            if isinstance(node, ast.ImportFrom) and node.module == "PIL":
                assert any(read in MODELS and MODELS[read].kind == "vision" for read in message)


def test_a_vision_model_reads_the_photographs_where_its_paper_names_no_pictures():
    assert names_of_scale(("minilm", ("dinov2-small",), 3)) == ("minilm", "dinov2-small", "photos")
    assert names_of_scale({"models": "smollm2"}) == ()
    assert names_of_scale(["dinov2-small", "fashion-mnist"]) == ("dinov2-small", "fashion-mnist")
    assert "digits" in over_smoothing.paper.reads(over_smoothing.QUICK)
