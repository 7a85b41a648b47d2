"""What is wrong with an assembled and built site, one line each."""

from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .navigation import Navigation, listed


def missing_pages(pages: Iterable[str], nav: Navigation) -> list[str]:
    """Pages that the navigation leaves out, names twice, or names though they are not there."""
    places, there = Counter(listed(nav)), set(pages)
    return [
        *(f"{page} is not in the navigation" for page in sorted(there - set(places))),
        *(f"the navigation names {page}, which is not there" for page in set(places) - there),
        *(f"the navigation names {page} twice" for page, times in places.items() if times > 1),
    ]


class Page(HTMLParser):
    """Where a page links to, and where one can link to in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {name for name in (given.get("id"), given.get("name")) if name}
        self.links += [place for place in (given.get("href"), given.get("src")) if place]


def broken_links(site: Path) -> list[str]:
    """Links of the built site to files, or to places in a page, that are not there."""
    pages = {
        path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")
    }
    wrong = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            base = site.resolve() if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            known = pages[target].anchors if target in pages else set()
            if not target.exists() or (
                anchor and not anchor.startswith("__") and anchor not in known
            ):
                wrong.append(
                    f"{path.relative_to(site.resolve())} links to {link}, which is not there"
                )
    return wrong
