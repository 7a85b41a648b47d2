"""The pictures of a reproduction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..run.charts import save_charts
from .claims import Reproduction
from .paper import Paper


def charts(done: Reproduction) -> dict[str, Any]:
    """Every picture of a reproduction, by name, the main one first; a paper that gives none has
    those of its training.
    """
    from . import PAPERS

    made = PAPERS.get(done.paper)
    if isinstance(made, Paper):
        return made.charts(done.tables)
    from .eigen_analysis.pictures import training_charts
    from .rank_collapse.pictures import collapse_charts

    return (
        collapse_charts(done.tables)
        if done.paper == "rank-collapse"
        else training_charts(done.tables)
    )


def draw(done: Reproduction, folder: Path) -> list[Path]:
    """The pictures as PNG and SVG; returns the files."""
    return save_charts(charts(done), folder)
