"""Every notebook of `examples/` has the same as a script of commands beside it, which runs."""

import json
import os
import re
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))

each_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)


def test_every_notebook_has_its_script_and_every_script_its_notebook():
    assert [path.stem for path in SCRIPTS] == [p.stem for p in sorted(EXAMPLES.glob("*.ipynb"))]


CALL = """#!{python} -S
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    line.sendall(json.dumps([sys.argv[1:], os.getcwd()]).encode() + b"\\n")
    code, out, err = json.loads(line.makefile().read())
sys.stdout.write(out), sys.stderr.write(err)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def programs(warm, tmp_path_factory):
    """A folder with an `eigenlens` that passes what it is asked to a process that is warm."""
    folder = tmp_path_factory.mktemp("programs")

    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            arguments, cwd = json.loads(self.rfile.readline())
            done = warm(*arguments, cwd=cwd)
            answer = [done.returncode, done.stdout, done.stderr]
            self.wfile.write(json.dumps(answer).encode())

    address = str(folder / "line")
    program = folder / "eigenlens"
    program.write_text(CALL.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socketserver.UnixStreamServer(address, Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder
        server.shutdown()


@pytest.mark.slow
@pytest.mark.download
@each_script
def test_a_script_runs_from_any_folder_and_writes_into_the_one_it_is_given(
    path, programs, tmp_path
):
    here, out = tmp_path / "here", tmp_path / "a folder"
    here.mkdir()
    folders = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    # the other core is another test's
    own = {"PATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1", "EIGENLENS_QUICK": "1"}
    done = subprocess.run(
        ["sh", path, out],
        cwd=here,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=240,
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
