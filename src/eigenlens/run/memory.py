"""How much memory a process may still take, and how much it has taken."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path("/")


def free_bytes(device: str | torch.device = "cpu", root: Path = ROOT) -> int:
    """Return how many bytes this process may still take on `device`.

    For a GPU, what its driver says; otherwise the least of

    - what the machine has left, without swap (`MemAvailable` on Linux),
    - what every control group above the process leaves it, in a container or a job of a cluster,
    - what its address space may still grow by (`ulimit -v`).

    Control groups and limits of the address space are those of Linux. `root` is where `/proc` and
    `/sys` are looked for.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return max(0, min([_machine(root), *_groups(root), *_address_space(root)]))


def resident_bytes(root: Path = ROOT) -> int:
    """Return the bytes of this process that are in memory now."""
    return _status("VmRSS", root) or _own_memory().rss


def peak_resident_bytes(root: Path = ROOT) -> int:
    """Return the peak of this process's bytes in memory.

    Not `ru_maxrss`, which a process takes over from the one that started it. Linux and Windows
    keep this number. Elsewhere it is what is in memory now, so that it may be too low.
    """
    if peak := _status("VmHWM", root):
        return peak
    now = _own_memory()
    return getattr(now, "peak_wset", now.rss)


def peak_of(work: Callable[[], Any], device: str | torch.device = "cpu") -> int:
    """Return the most bytes that a piece of work needed at once, beyond those before it.

    On a GPU its allocator counts; on the CPU the resident memory is looked at every millisecond, so
    that a short peak may be missed.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    give_back_memory()
    before, most, done = resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, resident_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        work()
        most = max(most, resident_bytes())
    finally:
        done.set()
        thread.join()
    return max(0, most - before)


def give_back_memory() -> None:
    """Give memory that the C library keeps for later back to the system, where it can."""
    trim = getattr(ctypes.pythonapi, "malloc_trim", None)  # of the GNU C library alone
    if trim is not None:
        trim(0)


def _own_memory() -> Any:
    import psutil

    return psutil.Process().memory_info()


def _machine(root: Path) -> int:
    left = _fields(root / "proc/meminfo").get("MemAvailable")
    if left is not None:
        return left
    import psutil

    return psutil.virtual_memory().available


def _groups(root: Path) -> Iterator[int]:
    """Yield what each control group with a limit leaves.

    Version 2 (`0::/path`), and the memory controller of version 1.
    """
    names: tuple[str, str]
    tops: tuple[str, ...]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            names, tops = (
                ("memory.max", "memory.current"),
                ("sys/fs/cgroup", "sys/fs/cgroup/unified"),
            )
        elif "memory" in controllers.split(","):
            names, tops = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                ("sys/fs/cgroup/memory",),
            )
        else:
            continue
        for top in tops:
            inner = Path(path.lstrip("/"))
            # a container may see its own group as the top: what is not there is skipped
            for part in (inner, *inner.parents):
                limit, used = (_number(root / top / part / name) for name in names)
                if limit is not None and used is not None:
                    yield limit - used + _cached(root / top / part / "memory.stat")


def _cached(path: Path) -> int:
    """Return bytes of file pages that count as used but are given back when memory is short."""
    counts = dict(line.split(maxsplit=1) for line in _text(path).splitlines() if " " in line)
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))


def _address_space(root: Path) -> Iterator[int]:
    import psutil

    if not psutil.LINUX:
        return
    limit, _ = psutil.Process().rlimit(psutil.RLIMIT_AS)
    if limit != psutil.RLIM_INFINITY:
        yield limit - _status("VmSize", root)


def _status(name: str, root: Path) -> int:
    return _fields(root / "proc/self/status").get(name, 0)


def _fields(path: Path) -> dict[str, int]:
    """Read lines `Name:   123 kB` as bytes."""
    parts = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {
        part[0]: int(part[1]) * 1024
        for part in parts
        if len(part) == 3 and part[2] == "kB" and part[1].isdigit()
    }


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is no file, or no limit (`max`)."""
    content = _text(path).strip()
    return int(content) if content.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
