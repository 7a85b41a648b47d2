"""What the tests of the documentation read: the pages of `docs/`, and the site built of them."""

import re
import sys
from dataclasses import dataclass
from functools import cached_property
from html import unescape
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(ROOT / "results")]  # the builder of the pages, and its data


@dataclass(frozen=True)
class Site:
    """The built site, and how its build ended."""

    folder: Path
    code: int
    message: str

    @cached_property
    def pages(self):
        """The HTML of every page by its place: `guides/cluster.html`."""
        return {
            path.relative_to(self.folder).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(self.folder.rglob("*.html"))
        }

    @cached_property
    def titles(self):
        """The title of every page, but for the one of lost links."""
        return {
            place: text_of(re.search(r"<h1[^>]*>(.*?)</h1>", html, re.DOTALL)[1])
            for place, html in self.pages.items()
            if place != "404.html"
        }


def text_of(html):
    """HTML without its tags and the signs that link to a heading."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).replace("¶", "").split())


def text(page):
    """The source of a page of `docs/`."""
    return (DOCS / page).read_text(encoding="utf-8")


def section(page, name):
    """What a page says under a heading of the second level."""
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text(page), re.MULTILINE | re.DOTALL)
    assert found, f"docs/{page} has no section {name}"
    return found[1]


def tables(markdown):
    """Every table of a text: lists of rows, each a list of cells, without the heading."""
    found = re.findall(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", markdown, re.MULTILINE)
    return [[cells_of(row) for row in table.splitlines()] for table in found]


def cells_of(row):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
