"""Every mechanism of the registry: `<!-- mechanisms -->` becomes a table, `<!-- mechanism
docstrings -->` their docstrings.
"""

import re
import sys
from dataclasses import fields

from eigenlens.attention import Mechanism, mechanisms


def fill(markdown: str) -> str:
    """A page with the tables that it asks for."""
    markdown = markdown.replace("<!-- mechanisms -->", table())
    return markdown.replace("<!-- mechanism docstrings -->", docstrings())


def table() -> str:
    rows = [
        "| name | letter | settings | sees | in transformers | cost grows with | paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, kind in sorted(mechanisms().items()):
        settings = ", ".join(f"`{field.name}={field.default!r}`" for field in fields(kind.Settings))
        drop_in, grows = "" if kind.own_weights else "yes", "n" if kind.linear else "n²"
        cells = (
            f"`{name}`",
            kind.letter or "",
            settings,
            ", ".join(kind.directions),
            drop_in,
            grows,
            paper(kind),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def paper(kind: type[Mechanism]) -> str:
    """The first arXiv number that the class or its file names."""
    text = f"{kind.__doc__} {sys.modules[kind.__module__].__doc__}"
    found = re.search(r"arXiv (\d{4}\.\d{5})", text)
    return f"arXiv {found[1]}" if found else ""


def docstrings() -> str:
    entries = []
    for name, kind in sorted(mechanisms().items()):
        place = f"{kind.__module__}.{kind.__name__}"
        entries.append(
            f"::: {place}\n    options:\n      heading: {name}\n      toc_label: {name}\n     "
            " members: [cost]\n"
        )
    return "\n".join(entries)
