"""What a diagnostic found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ..display import html_view
from ..errors import EigenlensError
from ..names import unknown

Place = tuple[str, int, int | None]
"""Stack, layer and head; the head is None of what belongs to a layer."""


def place_name(place: Place) -> str:
    """A place in words: `layer 3, head 5 of encoder`."""
    stack, layer, head = place
    return (
        f"layer {layer}"
        + ("" if head is None else f", head {head}")
        + ("" if stack == "self" else f" of {stack}")
    )


def place_label(place: Place) -> str:
    """A place in short, as sites are written: `encoder/3.5`, a layer `encoder/3`."""
    stack, layer, head = place
    return f"{stack}/{layer}" + ("" if head is None else f".{head}")


@dataclass(frozen=True)
class Number:
    """One number of one head or layer: the mean over inputs and its 95 % interval (None of a single
    input, or of weights).
    """

    stack: str
    layer: int
    head: int | None
    name: str
    mean: float
    low: float | None = None
    high: float | None = None
    number: int = 1

    @property
    def place(self) -> Place:
        return self.stack, self.layer, self.head


@dataclass(frozen=True, eq=False, repr=False)
class Finding:
    """All numbers of a diagnostic, a sentence, tables of more, and a picture.

    >>> study.diagnostics["sinks"].value("rate", "encoder", 3, 5)
    >>> study.diagnostics["sinks"].plot()
    """

    name: str
    title: str
    level: Literal["head", "layer"]
    words: Mapping[str, str]  # what each number is
    numbers: tuple[Number, ...]
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    note: str = ""  # why it does not apply
    settings: Mapping[str, Any] = field(default_factory=dict)
    sentence: str = ""

    def with_sentence(self, sentence: str, tables: Mapping[str, list[dict[str, Any]]]) -> Finding:
        return replace(self, sentence=sentence, tables=tables)

    @property
    def applies(self) -> bool:
        return bool(self.numbers)

    @property
    def stacks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(number.stack for number in self.numbers))

    def values(self, name: str, stack: str | None = None) -> dict[Place, float]:
        """One number of all places."""
        if name not in self.words:
            raise unknown(f"number of {self.name}", name, self.words)
        return {
            n.place: n.mean for n in self.numbers if n.name == name and stack in (None, n.stack)
        }

    def value(self, name: str, stack: str, layer: int, head: int | None = None) -> float:
        """One number of one place."""
        found = self.values(name)
        if (stack, layer, head) not in found:
            raise unknown(
                f"{name} of {self.name}", place_label((stack, layer, head)), map(place_label, found)
            )
        return found[stack, layer, head]

    def by_place(self) -> dict[Place, dict[str, float | None]]:
        """The numbers of each place under `sinks_rate`, `sinks_rate_low`, …."""
        found: dict[Place, dict[str, float | None]] = {}
        for n in self.numbers:
            record = found.setdefault(n.place, {})
            record[f"{self.name}_{n.name}"] = n.mean
            if n.low is not None:
                record |= {f"{self.name}_{n.name}_low": n.low, f"{self.name}_{n.name}_high": n.high}
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One record a place: stack, layer, head, and every number with its interval: `rate`,
        `rate_low`, `rate_high`.

        A number without an interval in any place, such as one of weights, has no such columns.
        """
        bounded = {n.name for n in self.numbers if n.low is not None}
        columns = [
            key
            for name in self.words
            for key in ((name, f"{name}_low", f"{name}_high") if name in bounded else (name,))
        ]
        rows: dict[Place, dict[str, Any]] = {}
        for n in self.numbers:
            start = {"stack": n.stack, "layer": n.layer} | (
                {} if n.head is None else {"head": n.head}
            )
            row = rows.setdefault(n.place, {**start, **dict.fromkeys(columns)})
            row[n.name] = n.mean
            if n.name in bounded:
                row |= {f"{n.name}_low": n.low, f"{n.name}_high": n.high}
        return list(rows.values())

    def layers(self) -> list[dict[str, Any]]:
        """One record a layer: of heads the mean over the heads."""
        sums: dict[tuple[str, int], dict[str, list[float]]] = {}
        for n in self.numbers:
            sums.setdefault((n.stack, n.layer), {}).setdefault(n.name, []).append(n.mean)
        rows = []
        for (stack, layer), found in sums.items():
            means = {
                name: sum(found[name]) / len(found[name]) if name in found else None
                for name in self.words
            }
            rows.append({"stack": stack, "layer": layer, **means})
        return rows

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "title": self.title,
            "sentence": self.sentence,
            "note": self.note,
            "words": dict(self.words),
            "settings": dict(self.settings),
            "tables": {title: list(rows) for title, rows in self.tables.items()},
            "numbers": [asdict(number) for number in self.numbers],
        }

    def plot(self) -> Any:
        """The diagnostic's picture (an altair chart)."""
        from . import chart_of

        if not self.applies:
            raise EigenlensError(
                f"there is nothing to draw of {self.name}: {self.note or 'nothing was measured'}"
            )
        return chart_of(self)

    def __repr__(self) -> str:
        return f"<{self.title}: {self.sentence or self.note or 'nothing was measured'}>"

    def _repr_html_(self) -> str:
        message = self.sentence or self.note or "Nothing was measured."
        return html_view(self.title, message, self.plot() if self.applies else None, self.rows())
