"""The house is tidy: imports point downwards, files stay small, and nothing of one machine is in
the tree.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "eigenlens"
# each room may import itself and these; display, errors, extras, hints, names, shell, switches and
# threads belong to everyone
BELOW = {
    "sources": set(),
    "capture": {"sources"},
    "stats": {"capture"},
    "run": {"stats", "__init__"},
    "spectra": {"stats"},
    "study": {"diagnostics", "spectra", "run", "stats", "capture", "sources", "__init__"},
    "attention": set(),
    "lab": {"attention", "sources", "run"},
    "bench": {
        "lab",
        "attention",
        "reconstruct",
        "study",
        "spectra",
        "stats",
        "capture",
        "explain",
        "collapse",
        "sources",
        "run",
    },
    "reconstruct": {"spectra", "attention", "stats", "capture", "study", "sources", "run"},
    "explain": {"capture", "attention", "stats", "run", "sources", "__init__"},
    "diagnostics": {"explain", "attention", "spectra", "stats", "capture", "sources"},
    "collapse": {"explain", "study", "spectra", "run", "stats", "capture", "sources"},
    "report": {
        "study",
        "reconstruct",
        "collapse",
        "explain",
        "diagnostics",
        "spectra",
        "run",
        "sources",
        "__init__",
    },  # results, and how files are written
    "papers": {
        "diagnostics",
        "bench",
        "collapse",
        "explain",
        "reconstruct",
        "lab",
        "attention",
        "study",
        "spectra",
        "run",
        "stats",
        "capture",
        "sources",
    },
}


def imported(path: Path):
    """Rooms that a file imports from, by relative or absolute import."""
    package = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                parts = (*base, *(node.module.split(".") if node.module else ()))
                yield parts[0] if parts else "__init__"
            elif node.module and node.module.startswith("eigenlens."):
                yield node.module.split(".")[1]


@pytest.mark.parametrize("room", BELOW)
def test_imports_point_downwards(room):
    for path in (SOURCE / room).rglob("*.py"):
        assert set(imported(path)) <= BELOW[room] | {
            room,
            "display",
            "errors",
            "extras",
            "hints",
            "names",
            "shell",
            "switches",
            "threads",
        }, path


def test_files_are_one_idea():
    long = {
        path.name: lines
        for path in SOURCE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 500
    }
    assert not long


def test_no_pickle_and_no_remote_code():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "trust_remote_code=True" not in text
        assert "import pickle" not in text
        assert (
            "torch.load(" not in text.replace("weights_only=True", "")
            or "weights_only=True" in text
        )


HEAVY = ("transformers", "scipy", "altair", "rich", "typer", "sklearn", "pandas", "PIL", "onnx")
MODULE = """
import sys, torch, eigenlens as el
model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
with el.capture(model) as calls:
    model(torch.randn(1, 5, 8))
assert el.load(model).backbone is model and calls[0].scores().shape == (1, 2, 5, 5)
"""


@pytest.mark.parametrize(
    "code", ["import sys, eigenlens", "import sys, eigenlens.papers, eigenlens.lab", MODULE]
)
def test_an_import_of_the_package_is_light(code):
    """What only some uses need loads when it is used: a result opens without the models' library,
    and so does a module.
    """
    code += f"\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_functions_keep_their_names_beside_the_rooms_they_live_in():
    """`eigenlens.study` is a room and a function: importing from the room must not hide the
    function.
    """
    import eigenlens as el
    import eigenlens.collapses.result
    import eigenlens.studies.result

    assert (
        callable(el.study) and callable(el.collapse) and callable(el.plan) and callable(el.evaluate)
    )
    assert all(hasattr(el, name) for name in el.__all__)
