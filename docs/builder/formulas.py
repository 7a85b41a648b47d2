"""Formulas as MathML, which browsers draw themselves: the pages need no script from elsewhere.

Pages hold `$…$` and `$$…$$`, as GitHub shows them too.
"""

import re

from latex2mathml.converter import convert

CODE_OR_FORMULA = re.compile(
    r"^```.*?^```$"  # code stays as it is
    r"|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|\$\$(?P<block>.+?)\$\$"
    r"|(?<![\\$])\$(?P<inline>[^\s$](?:[^$\n]*[^\s$\\])?)\$(?!\$)",
    re.MULTILINE | re.DOTALL,
)
MARKDOWN = str.maketrans({sign: f"&#{ord(sign)};" for sign in "*_|`[]~^\\"})
"""Signs in a formula that Markdown would take for its own."""


def draw(markdown: str) -> str:
    """A page with MathML in place of its formulas."""
    return CODE_OR_FORMULA.sub(_drawn, markdown)


def _drawn(found: re.Match[str]) -> str:
    if found["block"]:
        return f'<div class="formula">{_mathml(found["block"], "block")}</div>'
    if found["inline"]:
        return f'<span class="formula">{_mathml(found["inline"], "inline")}</span>'
    return found[0]


def _mathml(formula: str, display: str) -> str:
    drawn = convert(" ".join(formula.split()), display=display)
    parts = re.split(r"(<[^>]*>)", drawn)  # texts stand at even places, tags between them
    return "".join(part if n % 2 else part.translate(MARKDOWN) for n, part in enumerate(parts))
