"""What is installed runs wherever Python and torch run: no file of the package needs POSIX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import eigenlens

SOURCE = Path(eigenlens.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
POSIX_CALLS = {"fork", "getuid", "mkfifo", "sched_getaffinity", "setsid", "sysconf"}


IMPORT_ALL = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # whoever imports one of these gets an error
import importlib, pkgutil, eigenlens
found = [module.name for module in pkgutil.walk_packages(eigenlens.__path__, "eigenlens.")]
for name in found:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(found))
"""


def imported(tree):
    """The top names of all modules that a file imports, inside of functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]


def posix_calls(tree):
    """What a file takes from `os` that Windows does not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "os":
            yield from {node.attr} & POSIX_CALLS


def without_encoding(tree):
    """The lines that open a text file in whatever encoding the system has."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        given = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        method = getattr(node.func, "attr", "")
        text_method = method == "read_text" and not node.args
        text_method |= method == "write_text" and len(node.args) == 1
        opens = getattr(node.func, "id", "") == "open"
        if text_method or (opens and not any("b" in str(mode) for mode in given)):
            yield node.lineno


def wrong(code):
    tree = ast.parse(code)
    modules = {f"imports {name}" for name in POSIX_ONLY & set(imported(tree))}
    calls = {f"uses os.{name}" for name in posix_calls(tree)}
    return sorted(
        modules | calls | {f"line {line} names no encoding" for line in without_encoding(tree)}
    )


def test_no_file_needs_posix_and_every_text_file_has_an_encoding():
    found = {str(path.relative_to(SOURCE)): wrong(path.read_text("utf-8")) for path in FILES}
    assert len(found) > 300
    assert not {name: faults for name, faults in found.items() if faults}


@pytest.mark.slow
def test_every_module_imports_where_there_is_no_posix():
    """What the libraries import on their way included."""
    absent = sorted(POSIX_ONLY - {"posix"})  # without which no Python starts here
    words = [sys.executable, "-c", IMPORT_ALL, *absent]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("import fcntl", "imports fcntl"),
        ("def f():\n    from resource import getrlimit", "imports resource"),
        ("try:\n    import os, pwd as names\nexcept ImportError:\n    pass", "imports pwd"),
        ("import os\nos.fork()", "uses os.fork"),
        ("def f(path):\n    return path.read_text()", "line 2 names no encoding"),
        ("with open('x') as file:\n    pass", "line 1 names no encoding"),
    ],
)
def test_what_would_be_wrong_is_found(code, fault):
    assert wrong(code) == [fault]


@pytest.mark.parametrize(
    "code",
    [
        "from .resource import x",
        "open('x', 'rb')",
        "x.read_text(encoding='utf-8')",
        "write_text(a, b)",
    ],
)
def test_what_is_right_is_not_found(code):
    assert not wrong(code)
