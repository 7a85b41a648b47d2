"""What every file of `results/` says of how it was made."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from eigenlens import __version__
from eigenlens.kernels.build import processor

FORMAT = 1
TRANSCRIBED = "recorded by hand before results were data, and transcribed"
"""What stands in the place of the code of figures that were measured before these files."""


def header(
    kind: str,
    command: str,
    seconds: float,
    seed: int | None,
    code: dict[str, str],
    machine: dict[str, Any],
) -> dict[str, Any]:
    """The keys before the result itself; `code` holds the commit and the tree."""
    return {
        "format": FORMAT,
        "kind": kind,
        "command": command,
        **code,
        "versions": versions(),
        "machine": machine,
        "seed": seed,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seconds": round(seconds, 1),
    }


def versions() -> dict[str, str]:
    named = {name: version(name) for name in ("torch", "transformers", "numpy")}
    return {"eigenlens": __version__, "python": platform.python_version(), **named}


def machine(
    threads: int | None = None, engine: str = "local", workers: int | None = None
) -> dict[str, Any]:
    """The processor and how much of it worked: threads of a process, and processes."""
    return {
        "processor": processor()[0],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": threads or torch.get_num_threads(),
        "engine": engine,
        "workers": workers or 1,
    }
