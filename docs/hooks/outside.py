"""Pages of the repository that stand outside `docs/`, and links that work both there and on GitHub.

A link is written as GitHub wants it, from file to file of the repository, and rewritten here to
where the file is in the site.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

MEASURED = (
    "study",
    "reconstruct",
    "attention",
    "collapse",
    "diagnostics",
    "explain",
    "load",
    "scale",
    "together",
    "fuzz",
)
PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    **{f"benchmarks/{name}.md": f"benchmarks/{name}.md" for name in MEASURED},
}
"""File of the repository → page of the site."""
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    root = Path(config.config_file_path).parent
    for file, page in PAGES.items():
        files.append(
            File.generated(config, page, content=(root / file).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    here = page.file.src_uri
    source = next((file for file, name in PAGES.items() if name == here), f"docs/{here}")

    def moved(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        if re.match(r"[a-z]+:|/", target):
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = PAGES.get(file, file.removeprefix("docs/") if file.startswith("docs/") else None)
        if place is None:  # the build says that it leads nowhere
            return found[0]
        return before + posixpath.relpath(place, posixpath.dirname(here) or ".") + after

    return LINK.sub(moved, markdown)
