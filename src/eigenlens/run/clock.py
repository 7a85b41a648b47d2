"""Wait for a device, and read the clock when it has finished."""

from __future__ import annotations

import time

import torch


def finish(device: torch.device) -> None:
    """Wait until a device has done what it was given: a GPU works while Python goes on."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def now(device: torch.device) -> float:
    """The seconds of a steady clock, after a device has finished."""
    finish(device)
    return time.perf_counter()
