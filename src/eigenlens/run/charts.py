"""Save charts to files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..display import need_drawing
from .files import disk_errors


def save_charts(
    charts: Mapping[str, Any], folder: Path, only_png: Collection[str] = ()
) -> list[Path]:
    """Save altair charts under their names as PNG and SVG; returns the files.

    Charts with ten thousand cells or more are saved as PNG only.
    """
    need_drawing()
    written = []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in charts.items():
            for kind in ("png",) if name in only_png else ("png", "svg"):
                path = folder / f"{name}.{kind}"
                chart.save(str(path), **({"ppi": 120} if kind == "png" else {}))
                written.append(path)
    return written
