"""The notebooks of `examples/` run, and what is stored of them is what a reader should see."""

import importlib.util
import json
import re
from pathlib import Path

import nbformat
import pytest

from eigenlens.models.catalogue import MODELS, model_folder

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
PICTURES = {"image/png", "image/svg+xml"}
PLACES = re.compile(r"/(?:tmp|home|root|Users|var|work)/|site-packages|[A-Z]:\\")

spec = importlib.util.spec_from_file_location("examples_run", EXAMPLES / "run.py")
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code(notebook) for output in cell.outputs]


def pictures(notebook):
    """How many cells show a picture that needs no script."""
    return sum(
        any(PICTURES & set(output.get("data", ())) for output in cell.outputs)
        for cell in code(notebook)
    )


def test_there_are_notebooks():
    names = {"first_look", "low_dimensional", "faster", "heads_and_fine_tunes"}
    assert names <= {path.stem for path in NOTEBOOKS}


@pytest.mark.slow
@pytest.mark.download
@each_notebook
def test_a_notebook_runs_and_draws_what_is_stored(path, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the other core is another test's
    monkeypatch.setenv("EIGENLENS_QUICK", "1")
    before, stored = path.read_bytes(), nbformat.read(path, as_version=4)
    for name in MODELS:  # a notebook in which a model is converted shows the progress
        if any(f'el.load("{name}")' in cell.source for cell in stored.cells):
            model_folder(name)
    # it raises what a cell raises, and after its two minutes; twice that beside other tests
    done = run.execute(path, tmp_path, seconds=2 * run.SECONDS)
    assert pictures(done) == pictures(stored) > 3
    assert [cell.source for cell in done.cells] == [cell.source for cell in stored.cells]
    kinds = [
        [[output.output_type for output in cell.outputs] for cell in code(notebook)]
        for notebook in (done, stored)
    ]
    assert kinds[0] == kinds[1]
    assert path.read_bytes() == before


@each_notebook
def test_a_notebook_is_stored_as_it_ran(path):
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    assert [cell.execution_count for cell in code(stored)] == list(range(1, len(code(stored)) + 1))
    assert all(
        output.execution_count == cell.execution_count
        for cell in code(stored)
        for output in cell.outputs
        if output.output_type == "execute_result"
    )
    assert not [output for output in outputs(stored) if output.output_type == "error"]
    assert not [output for output in outputs(stored) if output.get("name") == "stderr"]
    assert path.stat().st_size < 1_000_000


@each_notebook
def test_a_stored_notebook_names_no_place_of_a_machine(path):
    stored = nbformat.read(path, as_version=4)
    texts = [cell.source for cell in stored.cells]
    for output in outputs(stored):
        texts += [output.get("text", "")]
        texts += [
            value if isinstance(value, str) else json.dumps(value)
            for kind, value in output.get("data", {}).items()
            if kind not in PICTURES
        ]
    assert not [text for text in texts if PLACES.search(text)]
    assert stored.metadata.language_info == {"name": "python"}
    assert not [cell for cell in stored.cells if cell.metadata.get("execution")]


@each_notebook
def test_a_notebook_uses_the_package_as_a_user_does(path):
    """No module inside of the package: `import eigenlens as el`, and its names."""
    lines = "\n".join(cell.source for cell in code(nbformat.read(path, as_version=4))).splitlines()
    named = [line for line in lines if re.search(r"\b(?:import|from) eigenlens\b", line)]
    assert named == ["import eigenlens as el"]


@each_notebook
def test_the_readme_lists_a_notebook_and_its_script(path):
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"[{path.name}]({path.name})" in readme
    assert f"[{path.stem}.sh]({path.stem}.sh)" in readme
