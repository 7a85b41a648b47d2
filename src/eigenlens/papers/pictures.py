"""The pictures of a reproduction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..run.charts import save_charts
from .claims import Reproduction


def charts(done: Reproduction) -> dict[str, Any]:
    """Every picture of a reproduction (altair charts), by name, the main one first."""
    from . import find_paper

    return find_paper(done.paper).charts(done.tables)


def draw(done: Reproduction, folder: Path) -> list[Path]:
    """The pictures as PNG and SVG; returns the files."""
    return save_charts(charts(done), folder)
