"""Pictures of the page: charts with their data kept apart, and arrays packed into bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Renderer = Literal["svg", "canvas"]


@dataclass(frozen=True)
class Figure:
    """A chart as the page draws it: Vega-Lite with named data, and the rows of each name.

    `title` is its name, `text` describes it to readers who cannot see it. A chart whose data has
    the name of the figure and no rows gets its rows from the page's script, when a head is opened
    or a slider moved.
    """

    key: str
    title: str
    text: str
    spec: dict[str, Any]
    data: dict[str, list[dict[str, Any]]]
    renderer: Renderer = "svg"

    @property
    def wide(self) -> bool:
        """Whether the figure needs the width of the page, as several views side by side do."""
        return "facet" in self.spec or len(self.spec.get("hconcat", ())) > 1

    def record(self) -> dict[str, Any]:
        """The figure as the script of the page reads it."""
        data = {name: columns(rows) for name, rows in self.data.items()}
        return {"title": self.title, "spec": self.spec, "data": data, "renderer": self.renderer}


def figure(key: str, chart: Any, title: str, text: str, renderer: Renderer = "svg") -> Figure:
    """Make a figure from an altair chart, with its specification and data apart."""
    spec = chart.to_dict(validate=False)
    # the page has its own colours, and headings above its pictures
    for name in ("$schema", "config", "title"):
        spec.pop(name, None)
    data: dict[str, list[dict[str, Any]]] = {}
    return Figure(key, title, text, _apart(spec, key, data), data, renderer)


def _apart(spec: Any, key: str, data: dict[str, list[dict[str, Any]]]) -> Any:
    """The specification with names in place of rows.

    The rows go into `data`; equal rows are kept once.
    """
    if isinstance(spec, list):
        return [_apart(part, key, data) for part in spec]
    if not isinstance(spec, dict):
        return spec
    mine = {
        name: value if name == "data" else _apart(value, key, data) for name, value in spec.items()
    }
    if isinstance(rows := mine.get("data", {}).get("values"), list):
        name = next((known for known, other in data.items() if other == rows), f"{key}-{len(data)}")
        data[name] = rows
        mine["data"] = {"name": name}
    return mine


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, so that every name is kept once."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [plain(row.get(name)) for row in rows] for name in names}


def plain(value: Any) -> Any:
    """A number for JSON with seven digits; None if it is not finite."""
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value


@dataclass
class Arrays:
    """Arrays in one block of bytes; `add` gives the place of each."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, array: np.ndarray) -> dict[str, Any]:
        """Add an array and return its place; arrays begin at multiples of four bytes."""
        array = np.ascontiguousarray(array)
        place = {"at": self.size, "shape": list(array.shape), "type": array.dtype.name}
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        content += b"\0" * (-len(content) % 4)
        self.parts.append(content)
        self.size += len(content)
        return place

    def add_scaled(self, array: np.ndarray, kind: type[np.signedinteger[Any]]) -> dict[str, Any]:
        """Add maps or lines `(N, …)` as integers, each with its own scale.

        The smallest integer stands for a missing number.
        """
        most = np.iinfo(kind).max
        flat = array.reshape(len(array), -1)
        with np.errstate(invalid="ignore"):
            scale = np.nanmax(np.abs(flat), axis=1, initial=0.0)
        scale = np.where(scale > 0, scale, 1.0)
        whole = np.round(flat / scale[:, None] * most)
        whole = np.where(np.isfinite(flat), whole, np.iinfo(kind).min).astype(kind)
        return {
            **self.add(whole.reshape(array.shape)),
            "scale": self.add((scale / most).astype(np.float32)),
        }

    def block(self) -> bytes:
        return b"".join(self.parts)
