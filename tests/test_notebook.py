"""Every result shows itself in a real notebook: what it is, what it says, its picture.

And its chart where one is asked for.
"""

import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from tiny import some_text, tiny_bert

# Charts are sent as they are. Altair 6 has a renderer for that, but names the kind `….v6.json`,
# which the format of notebooks takes for text and then refuses; its others put a script around the
# chart.
MAKE = """
import altair as alt, eigenlens as el
alt.renderers.register("plain", lambda chart, **options: {"application/vnd.vegalite.v6+json": chart})
alt.renderers.enable("plain")
study = el.study("bert", "text.txt", "study", max_length=20, max_inputs=24, rank=4)
other = el.study("bert", "text.txt", "other", max_length=20, max_inputs=24, rank=4, seed=1)
plan = el.plan(study, budget=0.3, max_inputs=4, output_dir="plan")
evaluation = el.evaluate("bert", "text.txt", plan=plan, max_inputs=6)
collapse = el.collapse("bert", "text.txt", "collapse", max_length=20, max_inputs=4, paths=1, bounds=1)
"""
SHOWN = {  # what is shown, and the beginning of what it says of itself
    "study": "The score rows of the median head need",
    "study.spectra": "The score rows of the median head need",
    "study.overlap(rank=4)": "Two heads share",
    "study.depth": "The effective rank of the tokens goes from",
    "el.compare(study, other)": (
        "bert on text.txt (study) and bert on text.txt (other): two heads, one of each study, share"
    ),
    "plan": "Simulated: 4 heads (",
    "evaluation": "With the plan",
    "collapse": "Over 2 blocks the distance of the tokens from one common vector (relative residual)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("notebook")
    tiny_bert(place / "bert")
    some_text(place / "text.txt")
    return place


@pytest.fixture(scope="module")
def outputs(folder):
    """By the code of a cell, what a kernel sent as its result, by kind."""
    cells = [MAKE, *SHOWN, *(f"{name}.plot()" for name in SHOWN)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python",
        "language": "python",
    }
    # raises what a cell raises
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    found = {}
    for cell in notebook.cells:
        results = [
            output["data"]
            for output in cell.outputs
            if output.output_type in {"execute_result", "display_data"}
        ]
        found[cell.source] = results[0] if results else None
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_a_result_shows_itself(outputs, name):
    view = outputs[name]["text/html"]
    assert view.startswith("<h4>")
    assert "<svg" in view or '<img src="data:image/png;base64,' in view
    assert f"<p>{SHOWN[name]}" in view
    assert view.index("<details>") < view.index("<table>")
    assert "<script" not in view


@pytest.mark.parametrize("name", SHOWN)
def test_a_plot_is_a_chart(outputs, name):
    kinds = outputs[f"{name}.plot()"]
    chart = next(kinds[kind] for kind in kinds if kind.startswith("application/vnd.vegalite."))
    rows = [*chart.get("datasets", {}).values(), *inline(chart)]
    assert rows and all(rows)


def inline(chart):
    """The rows that stand inside a chart, wherever in it."""
    if isinstance(chart, list):
        return [rows for part in chart for rows in inline(part)]
    if not isinstance(chart, dict):
        return []
    own = [chart["data"]["values"]] if "values" in chart.get("data", {}) else []
    return own + [rows for part in chart.values() for rows in inline(part)]


def test_results_open_and_show_themselves_without_the_models_library(outputs, folder):
    code = """
import sys, eigenlens as el
shown = [result._repr_html_() for result in (el.Study.open("study"), el.Collapse.open("collapse"))]
el.Plan.open("plan")
print([len(view) > 1000 for view in shown], "transformers" in sys.modules, "scipy.stats" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    assert done.stdout.strip() == "[True, True] False False"
