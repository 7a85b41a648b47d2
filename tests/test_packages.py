"""The wheel and the source archive: complete, and working where nothing else is installed."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from base_installation import make_base
from eigenlens._version import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "eigenlens"
FIRST_STEP = ("study", "minilm", "--max-inputs", 6, "--max-length", 32, "--only", "rows")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The files that a release uploads: `python -m build` makes the wheel from the archive."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def empty(built, tmp_path_factory):
    """A new environment with the wheel and the packages that it requires, and nothing else."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home, symlinks=True)
    scheme = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run([home / "bin" / "python", *scheme], capture_output=True, text=True)
    make_base(Path(site.stdout.strip()))
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    for words in (["install", "--quiet", "--no-index", "--no-deps", built[".whl"]], ["check"]):
        done = subprocess.run([*pip, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return home


def ran(home, program, *args):
    """What a program of the environment prints, away from the source."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [home / "bin" / program, *args]
    done = subprocess.run([*map(str, words)], cwd=home, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources(folder):
    """The files below a folder of the repository, without those that git is told to ignore."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=folder, capture_output=True, text=True)
    found = [folder / name for name in listed.stdout.split("\0") if name]
    if not found:  # not a clone
        found = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix() for path in found if path.is_file()}


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[".whl"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {f"eigenlens/{name}" for name in sources(PACKAGE)}
    assert {"eigenlens/py.typed", "eigenlens/reports/assets/page.html.j2"} <= names


def test_the_archive_holds_what_the_two_commands_need(built):
    with tarfile.open(built[".gz"]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    for folder in ("src", "tests", "docs", "benchmarks", "examples", ".github"):
        if (ROOT / folder).is_dir():
            expected = {f"{folder}/{name}" for name in sources(ROOT / folder)}
            assert {name for name in names if name.startswith(f"{folder}/")} == expected, folder
    tops = {name for name in names if "/" not in name}
    assert {"Makefile", "pyproject.toml", "constraints.txt", "LICENSE"} <= tops
    assert {path.name for path in ROOT.glob("*.md")} | {"CITATION.cff"} <= tops
    assert built[".gz"].stat().st_size < 20e6


def test_an_index_would_take_both(built):
    check = [sys.executable, "-m", "twine", "check", "--strict", *built.values()]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_what_is_imported_is_the_wheel_with_its_types_and_its_page(empty):
    code = (
        "import sys, json, eigenlens; from importlib.util import find_spec\n"
        "print(json.dumps([eigenlens.__file__, eigenlens.__version__, sys.path,"
        " [name for name in ('pytest', 'dask', 'onnx', 'sklearn', 'PIL') if find_spec(name)]]))"
    )
    file, version, path, extras = json.loads(ran(empty, "python", "-c", code))
    package = Path(file).parent
    assert package.is_relative_to(empty) and version == __version__
    assert not any(str(ROOT) in folder for folder in path)
    assert (package / "py.typed").is_file() and (package / "reports/assets/page.css").is_file()
    assert not extras


def test_the_first_step_of_the_demo_works_in_an_empty_environment(empty):
    assert ran(empty, "eigenlens", "--version").split()[-1] == __version__
    assert "minilm" in ran(empty, "eigenlens", "models")
    record = json.loads(ran(empty, "eigenlens", *FIRST_STEP, "-o", "first", "--json"))
    assert record["inputs"] == 6 and record["versions"]["eigenlens"] == __version__
    assert (empty / "first" / "study.json").is_file()


def test_the_metadata_name_licence_pythons_and_addresses(empty):
    site = next((empty / "lib").glob("python*")) / "site-packages"
    metadata = next(iter(site.glob(f"eigenlens-{__version__}.dist-info"))) / "METADATA"
    lines = metadata.read_text(encoding="utf-8").splitlines()
    assert "License-Expression: Apache-2.0" in lines and "Requires-Python: >=3.11" in lines
    for minor in (11, 12, 13, 14):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}" in lines
    named = {
        line.split(":")[1].split(",")[0].strip() for line in lines if line.startswith("Project-URL")
    }
    assert named == {"Repository", "Issues", "Changelog", "Documentation"}
