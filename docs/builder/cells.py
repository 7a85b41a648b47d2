"""Numbers and tables as the pages show them, in Markdown."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMAT = re.compile(r"(?P<bare>~)?(?P<spec>[+,]*(?:\.\d+)?[defgs%]?)")


def cell(value: Any, form: str = "") -> str:
    """A value of a table.

    >>> cell(0.5), cell(2897807.3), cell(5.5e-16), cell(0.0), cell(1024), cell(None), cell("a|b")
    ('0.500', '2,897,807', '5.5e-16', '0', '1,024', '–', 'a\\\\|b')
    """
    if value is None:
        return "–"
    if form and isinstance(value, int | float) and not isinstance(value, bool):
        return formatted(value, form)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value)
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(str(value).split()))


def formatted(value: Any, form: str) -> str:
    """A value in Python's own formats; `%` is set off, `~` leaves out a leading zero.

    >>> formatted(0.583, ".2f"), formatted(0.583, "~.2f"), formatted(0.583, ".0%")
    ('0.58', '.58', '58 %')
    """
    found = FORMAT.fullmatch(form)
    if found is None:
        raise ValueError(f"no format {form!r}; formats are such as .2f, ~.2f, .0%, .3g, ',d'")
    spec = found["spec"]
    text = f"{100 * value:{spec[:-1]}f} %" if spec.endswith("%") else f"{value:{spec}}"
    return re.sub(r"^([+-]?)0\.", r"\1.", text) if found["bare"] else text


def interval(bounds: Sequence[float] | None) -> str:
    return "–" if bounds is None else " – ".join(cell(bound) for bound in bounds)


def table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells as a Markdown table."""
    names = list(headings)
    lines = [names, *rows]
    shown = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([shown[0], "|" + "---|" * len(names), *shown[1:]])


def heading(key: str) -> str:
    """The name of a column as it is shown: `mean_gate` is "mean gate"."""
    words = key.replace("_", " ") if re.fullmatch(r"[a-z0-9_]+", key) else key
    return re.sub(r"(?<!\\)\|", r"\\|", words)


def counted(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items() if number)


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) >= 5e-4 else f"{value:.1e}"
