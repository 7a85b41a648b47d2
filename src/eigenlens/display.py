"""How results show themselves in notebooks and tables; tokens that hide nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import unicodedata
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from .errors import EigenlensError

JOINER, EMOJI_FORM = "\u200d", "\ufe0f"
"""What holds the parts of an emoji together, and what asks for its coloured form."""
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Letters, marks and symbols by category, yet without any ink."""
MOST_SVG = 2_000_000
"""Characters of a picture as SVG; a larger one becomes a PNG.

A notebook would carry every cell of it as text.
"""


def visible(text: str, most: int = 24) -> str:
    r"""A token as it can be read.

    Spaces, control characters and marks of direction are spelled out, long tokens are cut. Emoji
    stay whole; a mark that has nothing to stand on gets a dotted circle.

    >>> visible(" the"), visible("a\n"), visible("\u202eabc"), visible("\u0301")
    ('␣the', 'a\\n', '\\u202eabc', '◌́')
    """
    cut = f"… ({len(text):,} characters)" if len(text) > most else ""
    shown = text[:most]
    return (
        "".join(
            _spelled(shown[i - 1 : i], char, shown[i + 1 : i + 2]) for i, char in enumerate(shown)
        )
        + cut
    )


def _spelled(before: str, char: str, after: str) -> str:
    """One character between its neighbours, either of them empty at an end."""
    if char == " ":
        return "␣"
    if char == JOINER and (_pictures(before) or before == EMOJI_FORM) and _pictures(after):
        return char
    if char == EMOJI_FORM and before and not _hidden(before):
        return char
    if _hidden(char):
        spelled = f"\\u{ord(char):04x}" if char <= "\uffff" else f"\\U{ord(char):08x}"
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char, spelled)
    stands = before and before != " " and (before == EMOJI_FORM or not _hidden(before))
    return char if stands or unicodedata.category(char) not in {"Mn", "Me"} else f"◌{char}"


def _pictures(char: str) -> bool:
    """Whether this is an emoji, or the skin of one."""
    return bool(char) and unicodedata.category(char) in {"So", "Sk"}


def _hidden(char: str) -> bool:
    # another form of the letter before
    selects = "\ufe00" <= char <= EMOJI_FORM or "\U000e0100" <= char <= "\U000e01ef"
    return (
        selects
        or char in BLANK
        or unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
    )


def numbered(number: int, noun: str) -> str:
    """`1 head`, `12 heads`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def percent(share: float, digits: int = 0) -> str:
    """A share as sentences have it.

    >>> percent(0.9), percent(0.0953, 1)
    ('90 %', '9.5 %')
    """
    return f"{100 * share:.{digits}f} %"


def listed(names: Sequence[str], last: str = "and") -> str:
    """Names as a sentence has them; nothing where there are none.

    >>> listed(["one"]), listed(["one", "two", "three"]), listed(["one", "two"], "or")
    ('one', 'one, two and three', 'one or two')
    """
    *first, end = names or [""]
    return f"{', '.join(first)} {last} {end}" if first else end


def few_names(names: str, most: int = 3) -> str:
    """Names of data as a title has them: so many at most, otherwise their number.

    >>> few_names("a.txt, b.txt"), few_names("a.txt, b.txt, c.txt, d.txt"), few_names("a, b, c, d")
    ('a.txt, b.txt', '4 files', '4 data sets')
    """
    parts = names.split(", ")
    if len(parts) <= most:
        return names
    return numbered(len(parts), "file" if any("." in part for part in parts) else "data set")


def html_view(title: str, sentence: str, chart: Any, rows: Sequence[dict[str, Any]]) -> str:
    """A result in a notebook: what it is, what it says, its picture, and its rows to unfold.

    `chart` is an altair chart, or None. The picture is static: no script runs, and nothing is
    fetched.
    """
    message = f"<p>{_escaped(sentence)}</p>" if sentence else ""
    drawn = "" if chart is None else picture_view(chart, title)
    table = f"<details><summary>{numbered(len(rows), 'row')}</summary>{html_table(rows)}</details>"
    return f"<h4>{_escaped(title)}</h4>{message}{drawn}{table}"


def picture_view(chart: Any, text: str) -> str:
    """A chart in a notebook, or in its place the reason why it cannot be drawn."""
    try:
        return f'<div style="overflow-x: auto">{picture(chart, text)}</div>'
    except EigenlensError as error:
        return f"<p>{_escaped(str(error))}</p>"


def need_drawing() -> None:
    """Raise where the package that draws charts without a browser is missing."""
    if find_spec("vl_convert") is None:
        raise EigenlensError(
            "pictures are drawn by the package vl-convert-python, which is not installed; "
            "install it with: pip install vl-convert-python"
        )


def picture(chart: Any, text: str = "", most: int = MOST_SVG) -> str:
    """An altair chart as `<svg>`, or as `<img>` of a PNG above `most` characters.

    `text` describes the image to who cannot see it.
    """
    need_drawing()
    import altair as alt
    import vl_convert

    major, minor = alt.SCHEMA_VERSION.split(".")[:2]
    # altair's own check of every row takes longer than the drawing
    spec = _without_surrogates(chart.to_dict(validate=False))
    # a label on each of ten thousand cells says less than one on the picture
    spec.setdefault("config", {})["aria"] = False
    svg = vl_convert.vegalite_to_svg(spec, vl_version=f"{major}.{minor}", allowed_base_urls=[])
    if len(svg) > most:
        png = base64.b64encode(vl_convert.svg_to_png(svg, scale=2)).decode()
        width, height = re.findall(r'\b(?:width|height)="([\d.]+)"', svg[: svg.index(">")])
        return (
            f'<img src="data:image/png;base64,{png}" width="{width}" height="{height}"'
            f' alt="{_escaped(text)}">'
        )
    # All pictures of a notebook live in one document, where the name of a gradient or a clip must
    # stand for one thing.
    own = hashlib.sha256(svg.encode()).hexdigest()[:12]
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>p{own}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{_escaped(text)}"', 1)


def _without_surrogates(value: Any) -> Any:
    """Halves of characters, which names of files may hold, become question marks.

    They are in no encoding.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def html_table(rows: Sequence[dict[str, Any]], most: int = 200) -> str:
    """A plain HTML table for notebooks; whatever the values hold is shown, not run."""
    if not rows:
        return "<p>nothing</p>"
    names = list(rows[0])
    head = "".join(f"<th>{_escaped(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_escaped(_shown(row.get(name)))}</td>" for name in names) + "</tr>"
        for row in rows[:most]
    )
    more = f"<p>… {len(rows) - most} more rows</p>" if len(rows) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _escaped(text: str) -> str:
    """The text without markup; halves of characters, which no encoding carries, are spelled out."""
    return html.escape(text).encode("utf-8", "backslashreplace").decode()


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
