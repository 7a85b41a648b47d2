"""Every docstring of the package has a summary: one line, one sentence."""

import ast
from pathlib import Path

import pytest

import eigenlens

SOURCE = Path(eigenlens.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(tree):
    """Docstrings of modules, classes and functions, and those under constants and fields."""
    for node in ast.walk(tree):
        if not isinstance(node, OWNERS):
            continue
        for before, statement in zip([None, *node.body], node.body):
            of_owner = before is None
            of_name = isinstance(before, ast.Assign | ast.AnnAssign)
            if (of_owner or of_name) and isinstance(statement, ast.Expr):
                text = getattr(statement.value, "value", None)
                if isinstance(text, str):
                    yield statement.lineno, text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_the_summary_is_one_line_that_ends_a_sentence(file):
    for line, text in docstrings(ast.parse(file.read_text(encoding="utf-8"))):
        summary, *rest = text.splitlines() or [""]
        assert summary.endswith((".", "?")), f"{file}:{line}: {summary!r}"
        assert not rest or not rest[0].strip(), f"{file}:{line}: no blank line behind the summary"


def test_docstrings_of_every_kind_are_found():
    text = '"""A."""\nB = 1\n"""C."""\nclass D:\n    """E."""\n    f: int\n    """G."""\n'
    text += 'def h():\n    """I."""\n    j = 1\n    k()\n'
    assert {found for _, found in docstrings(ast.parse(text))} == {"A.", "C.", "E.", "G.", "I."}
