"""A reader that has had enough, as `head` has, stops no command: it ends with 0 and says
nothing.
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


@pytest.mark.parametrize(
    ("name", "unbuffered"), [*((name, "") for name in COMMANDS), ("tables", "1")]
)
def test_a_command_whose_reader_left_ends_with_0_and_without_a_word(world, name, unbuffered):
    """The pipe is closed before anything is written, so that the first write, or the last flush,
    finds no reader.
    """
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "eigenlens.cli", "--threads", "1", *COMMANDS[name]]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        cwd=world,
        env=environment,
        check=False,
    )
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert (
        "BrokenPipe" not in done.stderr
        and "Traceback" not in done.stderr
        and "Exception" not in done.stderr
    )
    if name != "study":  # which tells its progress there
        assert done.stderr == ""


def test_head_gets_its_lines(world):
    for command in ("show s --json", "show s"):
        line = f"set -o pipefail; {sys.executable} -m eigenlens.cli {command} | head -c 20"
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, cwd=world, check=False
        )
        assert (done.returncode, done.stderr) == (0, "") and len(done.stdout) == 20


def test_an_error_is_still_an_error_when_nobody_reads(world):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "eigenlens.cli", "show", "nowhere"]
    done = subprocess.run(command, stdout=write, stderr=write, cwd=world, check=False)
    os.close(write)
    assert done.returncode == 2


def test_what_has_a_reader_is_written_as_it_is(tmp_path):
    with open(tmp_path / "out", "wb") as file:
        pipe = Pipe(file.fileno(), "wb", closefd=False)
        assert pipe.write(b"as it is") == 8
    assert (tmp_path / "out").read_bytes() == b"as it is"
    with open(tmp_path / "text", "w", encoding="utf-8") as stream:
        assert written(stream) is stream  # not the process's own: only half characters are seen to
        print("half \udc80 a character", file=stream)
    assert (tmp_path / "text").read_text() == "half \\udc80 a character\n"
