"""What answers at once: it loads nothing that only work needs."""

import json
import subprocess
import sys

import pytest

import eigenlens

HEAVY = ("torch", "transformers", "numpy", "scipy", "altair", "dask", "pandas", "safetensors")
ANSWER = """
import contextlib, io, json, sys
from eigenlens.cli import main
out, err, code = io.StringIO(), io.StringIO(), 0
sys.argv = ["eigenlens", *json.loads(sys.argv[1])]
with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
loaded = [name for name in json.loads(sys.stdin.read()) if name in sys.modules]
print(json.dumps([code, loaded, out.getvalue(), err.getvalue()]))
"""


def answer(*arguments):
    """Exit code, heavy modules that were loaded, and what was printed, of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, json.dumps(arguments)],
        input=json.dumps(HEAVY),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "Usage: eigenlens"),
        (("--help",), 0, "reproduce"),
        (("--version",), 0, eigenlens.__version__),
        (("models",), 0, "smollm2"),
        (("models", "--json"), 0, '"models"'),
        (("study", "--help"), 0, "--max-length"),
        (("doctor", "--help"), 0, "--calibrate"),
        (("doctor", "--width", "8"), 2, "add --calibrate"),
        (("doctor", "--calibrate", "--width", "0"), 2, "greater than or equal to 1"),
        (("study", "minilm", "--wrong"), 2, "--wrong"),
        (("study", "minilm", "--max-inputs", "many"), 2, "it takes a whole number"),
        (("study",), 2, "model"),
        (("wrong",), 2, "wrong"),
    ],
)
def test_questions_and_mistakes_are_answered_without_loading_libraries(arguments, code, words):
    found, loaded, out, err = answer(*arguments)
    assert found == code and words in out + err
    assert loaded == []


def test_the_import_loads_nothing_until_a_name_is_used():
    code = (
        "import sys, eigenlens as el; before = [n for n in {0} if n in sys.modules]; el.capture;"
        " print(before, 'torch' in sys.modules, sorted(set(dir(el)) & {{'study', 'attention'}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code.format(HEAVY)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] True ['attention', 'study']"


def test_every_public_name_is_there_and_another_is_refused():
    for name in eigenlens.__all__:
        assert getattr(eigenlens, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'studdy'"):
        _ = eigenlens.studdy
