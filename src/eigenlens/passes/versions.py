"""The versions of the libraries that a result was made with."""

from __future__ import annotations

import platform
from importlib import metadata

import numpy as np
import safetensors
import torch

from .._version import __version__


def versions() -> dict[str, str]:
    """Return the versions of the libraries that a result is made with."""
    return {
        "eigenlens": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "safetensors": safetensors.__version__,
        "numpy": np.__version__,
    }
