"""Articles of a MediaWiki export as plain text, one page in memory at a time."""

import html
import re
from collections.abc import Iterable, Iterator

PAGE = re.compile(r"<title>(?P<title>.*?)</title>.*?<text[^>]*>(?P<text>.*?)</text>", re.DOTALL)
NAMESPACE = re.compile(r'<namespace key="-?[1-9]\d*">(.+?)</namespace>')

# Elements whose content is no running text.
ELEMENTS = re.compile(
    r"<!--.*?-->|<(ref|math|gallery|timeline|table|div|pre|hiero)\b[^<>]*(?:/>|(?<!/)>.*?</\1\s*>)",
    re.DOTALL | re.IGNORECASE,
)
TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
TABLE = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
EXTERNAL_LINK = re.compile(r"\[(?:https?|ftp|news|mailto)://?[^\s\[\]]*\s*([^\[\]]*)\]")
LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
DROPPED_LINK = re.compile(
    r"(?:image|media|category|[a-z]{2,3}(?:-[a-z-]+)?|simple|tokipona)\s*:", re.IGNORECASE
)
TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
QUOTES = re.compile(r"'{2,5}")
HEADING = re.compile(r"^=+\s*(.*?)\s*=+\s*$", re.MULTILINE)
LIST_MARK = re.compile(r"^[*#:;]+\s*", re.MULTILINE)
TABLE_REMAINS = re.compile(r"^(?:\{\||\|\}|[|!]).*$", re.MULTILINE)
RULES = re.compile(r"^----+|__[A-Z]+__", re.MULTILINE)


def articles(lines: Iterable[str]) -> Iterator[str]:
    """Yield the plain text of every article of an export, without redirects and other namespaces.

    A page without an end, as in an export that was cut, is left out too.
    """
    others: set[str] = set()
    page: list[str] | None = None
    for line in lines:
        if page is None:
            others.update(NAMESPACE.findall(line))
            page = [] if line.strip() == "<page>" else None
        elif line.strip() == "</page>":
            text = _article("".join(page), others)
            page = None
            if text:
                yield text
        else:
            page.append(line)


def _article(page: str, others: set[str]) -> str:
    found = PAGE.search(page)
    if found is None or html.unescape(found["title"]).partition(":")[0] in others:
        return ""
    source = html.unescape(found["text"])
    return "" if source.lstrip().lower().startswith("#redirect") else plain_text(source)


def plain_text(source: str) -> str:
    """Turn wiki markup into readable text: the words that a reader would see.

    Without tables, boxes, notes and pictures.
    """
    text = ELEMENTS.sub("", source)
    text = _repeated(TEMPLATE, text)
    text = _repeated(TABLE, text)
    text = EXTERNAL_LINK.sub(r"\1", text)
    text = _repeated(LINK, text)
    text = TAG.sub("", text)
    for pattern, kept in (
        (TABLE_REMAINS, ""),
        (RULES, ""),
        (QUOTES, ""),
        (HEADING, r"\1"),
        (LIST_MARK, ""),
    ):
        text = pattern.sub(kept, text)
    # Entities such as &nbsp; were escaped once for the export and once by their author.
    text = html.unescape(text).replace("\xa0", " ")
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r" *\n *", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _repeated(pattern: re.Pattern[str], text: str) -> str:
    """Replace matches from the inside outwards.

    Templates, tables and picture captions contain others of their kind.
    """
    while True:
        text, count = pattern.subn(_shown if pattern is LINK else "", text)
        if count == 0:
            return text


def _shown(link: re.Match[str]) -> str:
    """Return what a link shows: its last part, `[[target|shown]]`.

    Nothing for pictures, categories and other languages.
    """
    inside = link[1]
    if DROPPED_LINK.match(inside.lstrip()):
        return ""
    return inside.rpartition("|")[2]
