"""What the benchmarks print."""

from __future__ import annotations

from typing import Any


def table(rows: list[dict[str, Any]]) -> None:
    """Rows as a Markdown table."""
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print(
            "| "
            + " | ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values())
            + " |",
            flush=True,
        )
