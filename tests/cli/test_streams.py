"""A reader that has had enough, as `head` has, stops no command.

It ends with 0 and says nothing.
"""

import os
import subprocess
import sys

import pytest

from eigenlens import study
from eigenlens.cli.streams import Pipe, written
from tiny import some_text, tiny_bert


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    home = tmp_path_factory.mktemp("world")
    tiny_bert(home / "tiny"), some_text(home / "a.txt")
    study(
        home / "tiny",
        home / "a.txt",
        home / "s",
        max_inputs=24,
        max_length=16,
        only="rows,moments,depth",
    )
    return home


COMMANDS = {
    "models": ("models", "--json"),
    "help": ("study", "--help"),
    "tables": ("show", "s"),
    "numbers": ("show", "s", "--json"),
    "study": (
        "study",
        "tiny",
        "a.txt",
        "--max-inputs",
        "24",
        "--max-length",
        "8",
        "--only",
        "rows",
    ),
}


def assert_quiet(name, code, err):
    assert code == 0, err
    assert "BrokenPipe" not in err and "Traceback" not in err and "Exception" not in err
    if name != "study":  # which tells its progress there
        assert err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_whose_reader_left_ends_with_0_and_without_a_word(world, warm, name):
    """The pipe is closed before anything is written, so that the first write, or the last flush,
    finds no reader.
    """
    done = warm("--threads", "1", *COMMANDS[name], cwd=world, unread=[1])
    assert_quiet(name, done.returncode, done.stderr)


def test_so_does_one_that_python_starts_without_a_buffer(world):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "eigenlens.cli", "--threads", "1", *COMMANDS["tables"]]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    streams = {"stdout": write, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(command, **streams, cwd=world, env=environment, check=False)
    os.close(write)
    assert_quiet("tables", done.returncode, done.stderr)


def test_head_gets_its_lines(world):
    line = f"set -o pipefail; {sys.executable} -m eigenlens.cli show s --json | head -c 20"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=world, check=False
    )
    assert (done.returncode, done.stderr) == (0, "") and len(done.stdout) == 20


def test_an_error_is_still_an_error_when_nobody_reads(world, warm):
    assert warm("show", "nowhere", cwd=world, unread=[1, 2]).returncode == 2


def test_what_has_a_reader_is_written_as_it_is(tmp_path):
    with open(tmp_path / "out", "wb") as file:
        pipe = Pipe(file.fileno(), "wb", closefd=False)
        assert pipe.write(b"as it is") == 8
    assert (tmp_path / "out").read_bytes() == b"as it is"
    with open(tmp_path / "text", "w", encoding="utf-8") as stream:
        assert written(stream) is stream  # not the process's own: only half characters are seen to
        print("half \udc80 a character", file=stream)
    assert (tmp_path / "text").read_text() == "half \\udc80 a character\n"
