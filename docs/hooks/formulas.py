"""Formulas as MathML, which browsers draw themselves: the pages need no script from elsewhere.

Pages hold `$…$` and `$$…$$`, as GitHub shows them too.
"""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    return FORMULA.sub(_drawn, html)


def _drawn(found: re.Match[str]) -> str:
    element, formula = found.groups()
    drawn = convert(unescape(formula).strip(), display="block" if element == "div" else "inline")
    return f'<{element} class="formula">{drawn}</{element}>'
