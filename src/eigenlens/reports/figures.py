"""Pictures of the page: charts whose data stands apart, and arrays packed into bytes."""

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

    `title` is its name for everyone, `text` describes it to who cannot see it. A chart made with
    data of the figure's own name and no rows gets them from the page's script, when a head is
    opened or a slider moved.
    """

    key: str
    title: str
    text: str
    spec: dict[str, Any]
    data: dict[str, list[dict[str, Any]]]
    renderer: Renderer = "svg"

    @property
    def wide(self) -> bool:
        """Several views beside each other want the width of the page."""
        return "facet" in self.spec or len(self.spec.get("hconcat", ())) > 1

    def record(self) -> dict[str, Any]:
        """As the page's script reads it."""
        data = {name: columns(rows) for name, rows in self.data.items()}
        return {"title": self.title, "spec": self.spec, "data": data, "renderer": self.renderer}


def figure(key: str, chart: Any, title: str, text: str, renderer: Renderer = "svg") -> Figure:
    """Take an altair chart apart: what it draws, and what it draws it from."""
    spec = chart.to_dict(validate=False)
    # the page has its own colours, and headings above its pictures
    for name in ("$schema", "config", "title"):
        spec.pop(name, None)
    data: dict[str, list[dict[str, Any]]] = {}
    return Figure(key, title, text, _apart(spec, key, data), data, renderer)


def _apart(spec: Any, key: str, data: dict[str, list[dict[str, Any]]]) -> Any:
    """The specification with names where rows stood.

    The rows go into `data`, the same ones once.
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
    """Rows turned on their side: every name once, as the page keeps and saves them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [plain(row.get(name)) for row in rows] for name in names}


def plain(value: Any) -> Any:
    """A number as JSON has it: seven digits, None for what is none."""
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
        """Where the page finds the array; every array begins at a multiple of four bytes."""
        array = np.ascontiguousarray(array)
        place = {"at": self.size, "shape": list(array.shape), "type": array.dtype.name}
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        content += b"\0" * (-len(content) % 4)
        self.parts.append(content)
        self.size += len(content)
        return place

    def add_scaled(self, array: np.ndarray, kind: type[np.signedinteger[Any]]) -> dict[str, Any]:
        """Maps or lines `(N, …)` as whole numbers, each with its own scale.

        The least number stands for none.
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
