"""What a source file imports, read from its syntax: anywhere in it, in every form an import has."""

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Import(NamedTuple):
    """`from module import name`; of `import module` the name is empty."""

    module: str
    name: str

    @property
    def path(self) -> str:
        """The longest dotted name that the import may stand for."""
        return f"{self.module}.{self.name}".strip(".")


def imports(tree: ast.AST, package: str = "") -> Iterator[Import]:
    """Every import of a file, also inside functions and under TYPE_CHECKING, and those by a call of
    `import_module` or `__import__` with a text. `package` is the dotted name of the folder that the
    file lies in, which relative imports start from.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node.module or "", node.level, package)
            yield from (Import(module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            text = _start(node.args[0]) if node.args else ""
            level = len(text) - len(text.lstrip("."))
            yield Import(_absolute(text.strip("."), level, package), "")


def _absolute(module: str, level: int, package: str) -> str:
    if not level:
        return module
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *filter(None, [module])])


def _name(function: ast.expr) -> str:
    """The last word of what is called."""
    return getattr(function, "attr", getattr(function, "id", ""))


def _start(node: ast.expr) -> str:
    """A text as far as it is written out."""
    if isinstance(node, ast.JoinedStr):
        return _start(node.values[0]) if node.values else ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
