"""Time in rounds, so that noise hits all alike, and the peak of memory of one call."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Pace:
    """How many rounds: until every call has had `seconds`, at least `least` and at most `most`.

    A call that has had `least` rounds and `enough` seconds is left out of further rounds.
    """

    seconds: float = 0.2
    least: int = 3
    most: int = 50
    enough: float = 1.0


def in_rounds(
    calls: Mapping[str, Callable[[], Any]],
    pace: Pace,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call, by name: every one once per round, one after the other."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for done in range(pace.most):
        totals = {name: sum(times) for name, times in found.items()}
        waiting = [name for name in calls if done < pace.least or totals[name] < pace.enough]
        if done >= pace.least and all(total >= pace.seconds for total in totals.values()):
            break
        for name in waiting:
            begin = clock()
            calls[name]()
            found[name].append(clock() - begin)
    return found


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in times.items() if each}


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """The most bytes that a call holds at once beyond what was there before, its result among them.

    On a GPU the allocator counts them. On the CPU torch's profiler reports every allocation, those
    inside of operators too.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = call()
        torch.cuda.synchronize(device)
        del kept
        return int(torch.cuda.max_memory_allocated(device) - before)
    # or the profiler tells standard error that it begins and ends
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = call()
    results = seen.profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    del kept
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return int(peak)
