"""The house is tidy: imports point downwards, files stay small, and nothing of one machine is in the tree."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "eigenlens"
BELOW = {  # each room may import itself and these; errors and switches belong to everyone
    "sources": set(),
    "capture": set(),
    "stats": {"capture"},
    "run": {"stats"},
    "spectra": {"stats"},
    "study": {"spectra", "run", "stats", "capture", "sources", "__init__"},
    "attention": set(),
    "lab": {"attention"},
    "reconstruct": {"spectra", "attention", "stats", "capture", "study", "sources", "run"},
    "explain": {"capture"},
    "collapse": {"explain", "study", "spectra", "run", "stats", "capture", "sources"},
    "papers": {
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
        assert set(imported(path)) <= BELOW[room] | {room, "errors", "switches"}, path


def test_files_are_one_idea():
    long = {path.name: lines for path in SOURCE.rglob("*.py") if (lines := len(path.read_text().splitlines())) > 350}
    assert not long


def test_no_pickle_and_no_remote_code():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "trust_remote_code=True" not in text
        assert "import pickle" not in text
        assert "torch.load(" not in text.replace("weights_only=True", "") or "weights_only=True" in text


def test_an_import_of_the_package_is_light():
    """Plotting and the command line's libraries load when they are used."""
    code = "import sys, eigenlens; print([m for m in ('altair', 'rich', 'typer', 'sklearn', 'onnx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
