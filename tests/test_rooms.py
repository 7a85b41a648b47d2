"""The layers of the design.

Imports point downwards, the rooms that make results know each other by their results alone, files
stay small, and an import of the package is light.
"""

import ast
import graphlib
import importlib
import inspect
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import eigenlens as el
from imports import imports

SOURCE = Path(__file__).parents[1] / "src" / "eigenlens"
BASE = ["errors", "_version", "cache", "display", "extras", "hints", "names", "shell", "threads"]
"""Files that belong to everyone. Like rooms they may import what stands before them."""
LAYERS = {
    "base": BASE,
    "parts": ["kernels", "attention", "models", "data"],
    "seeing": ["captures", "anatomy"],
    "numbers": ["stats", "spectra", "diagnostics", "estimators"],
    "running": ["run", "passes"],
    "results": ["studies", "plans", "collapses", "explanations"],
    "experiments": ["lab", "bench", "papers"],
    "faces": ["reports", "cli"],
}
"""From the lowest layer to the highest, and in a layer in the order in which its rooms may import
each other.
"""
ORDER = list(chain(*LAYERS.values()))
RESULTS = {
    "studies": {"Study", "Comparison"},
    "plans": {"Plan", "Evaluation"},
    "collapses": {"Collapse"},
    "explanations": {"Explanation"},
}
"""What a room of the layer of results may import from another one of it."""
LONGEST = 450
"""Lines of a file; most are under 250."""


def room_of(path):
    """The room, or the base file, that a file of the package belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def targets(room, source, package):
    """What a source imports from the package: pairs of the other room and the whole dotted name."""
    for found in imports(ast.parse(source), package):
        first, *rest = found.path.split(".")
        if first == "eigenlens":
            other = rest[0] if rest and rest[0] in ORDER else "eigenlens"
            if other != room:
                yield other, found.path


def wrong_way(room, source, package):
    """Imports that point upwards, to a later room of the same layer, or to the package itself."""
    below = ORDER[: ORDER.index(room)]
    return [path for other, path in targets(room, source, package) if other not in below]


def more_than_results(room, source, package):
    """Imports of one room of results from another of anything but its results."""
    return [
        path
        for other, path in targets(room, source, package)
        if other in RESULTS and path.split(".")[-1] not in RESULTS[other]
    ]


def files(*rooms):
    """Files of rooms, each with its room, its text and the package that it lies in."""
    for path in sorted(SOURCE.rglob("*.py")):
        if (room := room_of(path)) in rooms:
            package = ".".join(("eigenlens", *path.relative_to(SOURCE).parts[:-1]))
            yield pytest.param(room, path.read_text(), package, id=str(path.relative_to(SOURCE)))


def test_every_room_and_every_file_beside_them_has_its_place():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert rooms - {"__pycache__"} == set(ORDER) - set(BASE)
    assert {path.stem for path in SOURCE.glob("*.py")} == {*BASE, "__init__"}
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("room", ORDER)
def test_imports_point_downwards(room):
    wrong = {file.id: found for file in files(room) if (found := wrong_way(*file.values))}
    assert not wrong


def test_no_rooms_import_each_other_in_a_circle():
    graph = {room: set() for room in ORDER}
    for file in files(*ORDER):
        graph[file.values[0]] |= {other for other, _ in targets(*file.values)}
    list(graphlib.TopologicalSorter(graph).static_order())  # an error names the circle


@pytest.mark.parametrize("room", RESULTS)
def test_rooms_of_results_know_each_other_by_their_results(room):
    wrong = {file.id: found for file in files(room) if (found := more_than_results(*file.values))}
    assert not wrong
    module = importlib.import_module(f"eigenlens.{room}")
    exported = RESULTS[room] & set(module.__all__)
    assert exported and all(inspect.isclass(getattr(module, name)) for name in exported)


UPWARDS = {
    "a room above": "from ..studies import Study",
    "the same by its full name": "from eigenlens.studies import Study",
    "a module by its full name": "import eigenlens.studies.result",
    "with another name": "import eigenlens.studies as below",
    "inside a function": "def late():\n    from ..studies.result import Study",
    "for the types alone": "if TYPE_CHECKING:\n    from ..studies import Study",
    "a room as a name": "from .. import studies",
    "by a call": "importlib.import_module('eigenlens.studies')",
    "by a call with a part to come": "import_module(f'eigenlens.studies.{name}')",
    "by a relative call": "import_module('..studies', __package__)",
    "by the oldest call": "__import__('eigenlens.studies')",
    "the package": "import eigenlens as el",
    "a name of the package": "from eigenlens import study",
    "a name of the package, relative": "from .. import study",
    "a room after it in its layer": "from ..anatomy import freeze",
}


@pytest.mark.parametrize("form", UPWARDS)
def test_no_form_of_an_import_upwards_is_overlooked(form):
    assert wrong_way("captures", UPWARDS[form], "eigenlens.captures")


@pytest.mark.parametrize(
    "source",
    [
        "from ..models import load",
        "from .. import errors, data",
        "from . import call",
        "from .call import AttentionCall",
        "import torch",
        "from .sites import studies",
    ],
)
def test_imports_downwards_and_inside_a_room_are_fine(source):
    assert not wrong_way("captures", source, "eigenlens.captures")


def test_a_base_file_imports_base_files_alone():
    assert wrong_way("hints", "from .models import load", "eigenlens")
    assert wrong_way("errors", "from .names import near", "eigenlens")
    assert not wrong_way("hints", "from .errors import EigenlensError", "eigenlens")


@pytest.mark.parametrize(
    ("source", "fine"),
    [
        ("from ..studies import Study", True),
        ("from ..studies.result import Study", True),
        ("from ..spectra import rows", True),
        ("from ..studies import study", False),
        ("from ..studies.groups import group_of", False),
        ("import eigenlens.studies.result", False),
        ("from .. import studies", False),
    ],
)
def test_more_than_results_is_noticed(source, fine):
    assert (not more_than_results("plans", source, "eigenlens.plans")) == fine


def test_files_are_one_idea():
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text().splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST}


def test_no_function_has_the_name_of_a_room():
    """Where both had it, an import from the room would hide the function."""
    public = {name: getattr(el, name) for name in el.__all__}
    assert not {name for name, found in public.items() if callable(found)} & set(ORDER)
    assert {name for name, found in public.items() if inspect.ismodule(found)} <= set(ORDER)


HEAVY = ("transformers", "scipy", "altair", "rich", "typer", "sklearn", "pandas", "PIL", "onnx")
STEPS = {
    "the package": "import eigenlens as el",
    "papers and the lab": "import eigenlens.papers, eigenlens.lab",
    "a module in hand": """
model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
with el.capture(model) as calls:
    model(torch.randn(1, 5, 8))
assert el.load(model).backbone is model and calls[0].scores().shape == (1, 2, 5, 5)""",
}


@pytest.mark.slow
def test_an_import_of_the_package_is_light():
    """What only some uses need loads when it is used.

    A result opens without the models' library, and so does a module.
    """
    code = "import sys, torch\n"
    for step, lines in STEPS.items():
        code += f"{lines}\nprint({step!r}, [name for name in {HEAVY} if name in sys.modules])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{step} []" for step in STEPS]
