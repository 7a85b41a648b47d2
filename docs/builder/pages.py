"""Pages as plain Markdown, ready for any builder.

A page is written as GitHub shows it, with links from file to file of the repository. Here it gets
its tables and formulas, and its links are turned to where the files are in the site.
"""

import posixpath
import re
import shutil
from pathlib import Path

from . import diagnostics, formulas, mechanisms, options
from .filling import is_filled
from .results import without_markers

FROM_ROOT = ("CONTRIBUTING", "RELEASING", "SECURITY", "CHANGELOG")
NO_PAGES = ("builder", "__pycache__", "*.py", "*.toml")
"""What of `docs/` belongs to the builder, not to the site."""
NOT_IN_SITE = re.compile(r"<!-- not in the site -->\n.*?<!-- in the site -->\n\n", re.DOTALL)
"""What a page says to who reads it as a file."""
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def assemble(root: Path, folder: Path) -> dict[str, str]:
    """Write every page and picture into a folder, and return the pages: page → its source file."""
    docs = root / "docs"
    shutil.copytree(docs, folder, ignore=_no_pages(docs))
    sources = {
        path.relative_to(folder).as_posix(): f"docs/{path.relative_to(folder).as_posix()}"
        for path in sorted(folder.rglob("*.md"))
    }
    for path in sorted((root / "benchmarks").glob("*.md")):
        sources[f"measurements/{path.name}"] = f"benchmarks/{path.name}"
    sources["developing/results.md"] = "results/README.md"
    for name in FROM_ROOT:
        if (root / f"{name}.md").exists():
            sources[f"{name.lower()}.md"] = f"{name}.md"
    for page, source in sources.items():
        text = (root / source).read_text(encoding="utf-8")
        (folder / page).write_text(_assembled(text, page, sources), encoding="utf-8")
    return sources


def _no_pages(docs: Path):
    top, anywhere = shutil.ignore_patterns(*NO_PAGES), shutil.ignore_patterns("__pycache__")
    return lambda place, names: (top if Path(place) == docs else anywhere)(place, names)


def _assembled(text: str, page: str, sources: dict[str, str]) -> str:
    if is_filled(sources[page]):
        text = without_markers(text)
    text = formulas.draw(turn_links(NOT_IN_SITE.sub("", text), page, sources))
    for part in (options, mechanisms, diagnostics):
        text = part.fill(text)
    return text


def turn_links(text: str, page: str, sources: dict[str, str]) -> str:
    """Links between files of the repository become links between pages."""
    pages = {source: name for name, source in sources.items()}
    source = sources[page]

    def turned(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        if re.match(r"[a-z]+:|/", target):
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = pages.get(file, file.removeprefix("docs/") if file.startswith("docs/") else None)
        if place is None:  # no page: the build says that it leads nowhere
            return found[0]
        return before + posixpath.relpath(place, posixpath.dirname(page) or ".") + after

    return LINK.sub(turned, text)
