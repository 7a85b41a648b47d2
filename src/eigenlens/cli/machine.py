"""What this machine has, and what is missing for what."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from ..cache import cache_folder
from ..data.datasets import DATASETS
from ..display import listed
from ..extras import EXTRAS, PURPOSES, missing_libraries
from ..kernels.build import kernel, processor
from ..models.catalogue import MODELS
from ..plans.calibration import Calibration, calibrations
from ..run.memory import free_bytes

HOLDS = {
    "packages": "models and data of the catalogue, as they were downloaded",
    "models": "models of the catalogue, converted",
    "kernels": "native kernels, compiled on this machine",
    "calibrations": "what attention takes on this machine, measured",
    "vega": "the script that draws charts on pages",
}
"""The folders of the cache, and what is in each."""
PROGRAMS = {"npm": ("npm",), "debian": ("apt-get", "dpkg-deb")}
"""The programs that fetch from a registry; Python's own come with pip."""


@dataclass(frozen=True)
class Versions:
    """`transformers` is None if it is not installed."""

    eigenlens: str
    python: str
    torch: str
    transformers: str | None


@dataclass(frozen=True)
class Processor:
    """`instructions` are what torch computes with, such as AVX512."""

    name: str
    system: str
    instructions: str
    cores: int
    threads: int
    free_bytes: int


@dataclass(frozen=True)
class Device:
    """One that torch can use beside the processor; None if it does not say how much is free."""

    name: str
    what: str
    free_bytes: int | None


@dataclass(frozen=True)
class Extra:
    """Libraries that some work needs."""

    name: str
    purpose: str
    missing: list[str]
    """Its libraries that are not installed."""
    install: str | None
    """The command that installs them; None if all are there."""


@dataclass(frozen=True)
class Program:
    """A program that fetches some of the catalogue."""

    name: str
    purpose: str
    installed: bool


@dataclass(frozen=True)
class NativeKernel:
    """Whether attention is computed by compiled code, and why not."""

    compiled: bool
    compiler: str | None
    file: str | None
    missing: str | None


@dataclass(frozen=True)
class Holding:
    """A folder of the cache."""

    name: str
    what: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Cache:
    """The cache folder; `problem` says why it cannot be written."""

    folder: str
    writable: bool
    problem: str | None
    holds: tuple[Holding, ...]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.holds)


@dataclass(frozen=True)
class Machine:
    """What this machine has."""

    versions: Versions
    processor: Processor
    devices: tuple[Device, ...]
    extras: tuple[Extra, ...]
    programs: tuple[Program, ...]
    kernel: NativeKernel
    cache: Cache
    calibrations: tuple[Calibration, ...]

    def record(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return asdict(self)


def diagnose_machine() -> Machine:
    """Look at everything; the native kernel is compiled if that was not done yet."""
    native = kernel()
    return Machine(
        Versions(__version__, platform.python_version(), torch.__version__, _transformers()),
        Processor(
            processor()[0],
            f"{platform.system()} {platform.machine()}",
            torch.backends.cpu.get_cpu_capability(),
            _cores(),
            torch.get_num_threads(),
            free_bytes(),
        ),
        tuple(_devices()),
        tuple(_extras()),
        tuple(_programs()),
        NativeKernel(
            native.library is not None,
            native.compiler,
            None if native.path is None else str(native.path),
            native.missing,
        ),
        _cache(cache_folder()),
        tuple(calibrations()),
    )


def _transformers() -> str | None:
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    """Those that this process may use."""
    import psutil

    own = psutil.Process()
    # macOS does not bind a process to cores
    return len(own.cpu_affinity()) if hasattr(own, "cpu_affinity") else os.cpu_count() or 1


def _devices() -> Iterator[Device]:
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            name = f"cuda:{i}"
            yield Device(name, torch.cuda.get_device_name(i), _free(name))
    if torch.backends.mps.is_available():
        yield Device("mps", "the GPU of a Mac", None)


def _free(device: str) -> int | None:
    try:
        return free_bytes(device)
    except RuntimeError:  # another process may have it for itself
        return None


def _extras() -> Iterator[Extra]:
    for name in EXTRAS:
        missing = missing_libraries(name)
        install = f"pip install 'eigenlens[{name}]'" if missing else None
        yield Extra(name, PURPOSES[name], missing, install)


def _programs() -> Iterator[Program]:
    for registry, names in PROGRAMS.items():
        kinds = {
            "model": [m.name for m in MODELS.values() if m.source.registry == registry],
            "data set": [
                d.name for d in DATASETS.values() if d.source and d.source.registry == registry
            ],
        }
        wanted = [f"the {kind} {name}" for kind, found in kinds.items() for name in found]
        for name in names:
            here = shutil.which(name) is not None
            yield Program(name, f"fetching {listed(wanted)}", here)


def _cache(folder: Path) -> Cache:
    problem = _write_problem(folder)
    try:
        inside = sorted(path.name for path in folder.iterdir())
    except OSError:
        inside = []
    holds = [Holding(name, what, *_size([folder / name])) for name, what in HOLDS.items()]
    others = [folder / name for name in inside if name not in HOLDS]
    if others:
        holds.append(Holding("other", "what eigenlens did not put there", *_size(others)))
    return Cache(str(folder), problem is None, problem, tuple(holds))


def _write_problem(folder: Path) -> str | None:
    """Why nothing can be written to a folder; None if something can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        return error.strerror or str(error)
    return None


def _size(paths: list[Path]) -> tuple[int, int]:
    """Files and bytes of files and folders; what cannot be looked at is left out."""
    files = [path for path in paths if not path.is_dir()]
    for path in paths:
        for folder, _, names in os.walk(path):
            files += [Path(folder) / name for name in names]
    sizes = []
    for file in files:
        try:
            sizes.append(file.lstat().st_size)
        except OSError:
            continue
    return len(sizes), sum(sizes)
