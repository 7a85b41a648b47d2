"""What a diagnostic found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ..captures import Head, Labels, Site, labelled, location
from ..display import html_view
from ..errors import EigenlensError
from ..names import unknown_name


@dataclass(frozen=True)
class Number:
    """One number of one head or layer: the mean over inputs and its 95 % interval.

    The interval is None if there is one input, or if the number comes from weights.
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
    def at(self) -> Head | Site:
        return location(self.stack, self.layer, self.head)


@dataclass(frozen=True, eq=False, repr=False)
class Finding:
    """All numbers of a diagnostic, with a sentence, further tables and a picture.

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

    @property
    def labels(self) -> Labels:
        """The names of its heads and layers: `L3H5`, or `encoder L3H5` with several stacks."""
        return Labels(self.stacks)

    def values(self, name: str, stack: str | None = None) -> dict[Head | Site, float]:
        """One number of every head, or of every layer."""
        if name not in self.words:
            raise unknown_name(f"number of {self.name}", name, self.words)
        return {n.at: n.mean for n in self.numbers if n.name == name and stack in (None, n.stack)}

    def of_heads(self, name: str) -> dict[Head, float]:
        """`values` for a diagnostic of heads."""
        return {at: value for at, value in self.values(name).items() if isinstance(at, Head)}

    def value(self, name: str, stack: str, layer: int, head: int | None = None) -> float:
        """One number of one head or layer."""
        found, at, labels = self.values(name), location(stack, layer, head), self.labels
        if at not in found:
            raise unknown_name(f"{name} of {self.name}", labels(at), map(labels, found))
        return found[at]

    def by_location(self) -> dict[Head | Site, dict[str, float | None]]:
        """The numbers of each head or layer, named `sinks_rate`, `sinks_rate_low`, …."""
        found: dict[Head | Site, dict[str, float | None]] = {}
        for n in self.numbers:
            record = found.setdefault(n.at, {})
            record[f"{self.name}_{n.name}"] = n.mean
            if n.low is not None:
                record |= {f"{self.name}_{n.name}_low": n.low, f"{self.name}_{n.name}_high": n.high}
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One record per head or layer.

        Stack, layer, head, and every number with its interval: `rate`, `rate_low`, `rate_high`.

        A number that never has an interval, such as one of weights, has no interval columns.
        """
        bounded = {n.name for n in self.numbers if n.low is not None}
        columns = [
            key
            for name in self.words
            for key in ((name, f"{name}_low", f"{name}_high") if name in bounded else (name,))
        ]
        rows: dict[Head | Site, dict[str, Any]] = {}
        for n in self.numbers:
            start = {"stack": n.stack, "layer": n.layer} | (
                {} if n.head is None else {"head": n.head}
            )
            row = rows.setdefault(n.at, {**start, **dict.fromkeys(columns)})
            row[n.name] = n.mean
            if n.name in bounded:
                row |= {f"{n.name}_low": n.low, f"{n.name}_high": n.high}
        return list(rows.values())

    def layers(self) -> list[dict[str, Any]]:
        """One record per layer; numbers of heads are averaged over the heads of the layer."""
        sums: dict[Site, dict[str, list[float]]] = {}
        for n in self.numbers:
            sums.setdefault(Site(n.stack, n.layer), {}).setdefault(n.name, []).append(n.mean)
        rows = []
        for site, found in sums.items():
            means = {
                name: sum(found[name]) / len(found[name]) if name in found else None
                for name in self.words
            }
            rows.append({"stack": site.stack, "layer": site.layer, **means})
        return rows

    def record(self) -> dict[str, Any]:
        """The finding as plain data."""
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
        """Draw the diagnostic's picture (an altair chart)."""
        from . import chart_of

        if not self.applies:
            raise EigenlensError(
                f"there is nothing to draw for {self.name}: {self.note or 'nothing was measured'}"
            )
        return chart_of(self)

    def __repr__(self) -> str:
        return f"<{self.title}: {self.sentence or self.note or 'nothing was measured'}>"

    def _repr_html_(self) -> str:
        message = self.sentence or self.note or "Nothing was measured."
        return html_view(
            self.title, message, self.plot() if self.applies else None, labelled(self.rows())
        )
