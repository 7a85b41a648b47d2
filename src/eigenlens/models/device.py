"""The device that work runs on, by name."""

from __future__ import annotations

import torch

from ..errors import EigenlensError, first_line


def device_named(name: str) -> str:
    """Return the name of a usable device: `cpu`, `cuda:1`; `auto` is a GPU if there is one.

    >>> device_named("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).tolist()  # a device that holds no numbers fails here
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise EigenlensError(f"the device {name!r} cannot be used: {first_line(error)}") from error
    return name
