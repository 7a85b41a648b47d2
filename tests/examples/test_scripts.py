"""Every notebook of `examples/` has the same as a script of commands beside it, which runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))

each_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)


def test_every_notebook_has_its_script_and_every_script_its_notebook():
    assert [path.stem for path in SCRIPTS] == [p.stem for p in sorted(EXAMPLES.glob("*.ipynb"))]


@pytest.mark.slow
@pytest.mark.download
@each_script
def test_a_script_runs_from_any_folder_and_writes_into_the_one_it_is_given(path, tmp_path):
    here, out = tmp_path / "here", tmp_path / "a folder"
    here.mkdir()
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # the other core is another test's
    environment = {**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["sh", path, out], cwd=here, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (out / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not list(here.iterdir())
    assert "Traceback" not in done.stderr


@each_script
def test_a_script_stops_at_an_error_and_says_what_each_command_shows(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/bin/sh\n") and "\nset -eu\n" in text
    lines = text.splitlines()
    for number, line in enumerate(lines):
        # a command of a loop is explained above the loop
        above = number - lines[number - 1].startswith("for ")
        if re.match(r"\s*eigenlens ", line):
            assert lines[above - 1].startswith("# "), line
    subprocess.run(["sh", "-n", path], check=True)
