"""What the benchmarks print, and whoever else wants the rows (`record.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]
LISTENERS: list[Callable[[Rows], None]] = []
"""Each is given the rows of every table that is printed."""


def table(rows: Rows) -> None:
    """Rows as a Markdown table."""
    for listen in LISTENERS:
        listen(rows)
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print(
            "| "
            + " | ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values())
            + " |",
            flush=True,
        )
