"""The folder that keeps what was downloaded, converted, compiled or measured once."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $EIGENLENS_CACHE, or eigenlens below $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("EIGENLENS_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "eigenlens"
