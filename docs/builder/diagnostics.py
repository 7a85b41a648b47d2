"""Every diagnostic: `<!-- diagnostics -->` becomes a table of them, `<!-- diagnostic docstrings
-->` their docstrings.
"""

from dataclasses import fields

from eigenlens.diagnostics import DIAGNOSTICS

SEES = {
    "calls": "patterns of the study's inputs",
    "layers": "the stream of the study's inputs",
    "weights": "the weights",
    "probe": "random tokens, repeated",
}


def fill(markdown: str) -> str:
    """A page with the tables that it asks for."""
    markdown = markdown.replace("<!-- diagnostics -->", table())
    return markdown.replace("<!-- diagnostic docstrings -->", docstrings())


def table() -> str:
    rows = ["| name | of each | from | numbers | settings |", "|---|---|---|---|---|"]
    for name, kind in DIAGNOSTICS.items():
        numbers = "<br>".join(
            f"`{name}_{number}` {words}" for number, words in kind.numbers.items()
        ).replace("|", "\\|")
        settings = "<br>".join(
            f"`{name}.{field.name}={field.default!r}`" for field in fields(kind.Settings)
        )
        rows.append(f"| `{name}` | {kind.level} | {SEES[kind.sees]} | {numbers} | {settings} |")
    return "\n".join(rows)


def docstrings() -> str:
    entries = []
    for name, kind in DIAGNOSTICS.items():
        place = f"{kind.__module__}.{kind.__name__}"
        entries.append(
            f"::: {place}\n    options:\n      heading: {name}\n      toc_label: {name}\n     "
            " members: false\n"
        )
    return "\n".join(entries)
