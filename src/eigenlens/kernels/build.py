"""Compile the native kernel at its first use, into the user's cache.

The compiler is the one that torch's extension tools name (`$CXX`, else `c++`). The source includes
none of torch's headers, so that it compiles in seconds. What was compiled is kept by source, torch,
compiler and processor, and compiled anew if one of them changes. Without a compiler, or if it
fails, there is no kernel, and the forms in torch serve.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

from ..cache import cache_folder

SOURCE = Path(__file__).parent / "sparse_attention.cpp"
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-ffp-contract=fast")
SHARED = ("-shared", "-fPIC", "-fopenmp")
SWITCH = "EIGENLENS_NATIVE"
"""`EIGENLENS_NATIVE=0` in the environment leaves the kernel out."""
SECONDS = 300
"""A compiler that takes longer has failed."""


@dataclass(frozen=True)
class Kernel:
    """The compiled kernel, or why there is none."""

    library: ctypes.CDLL | None
    compiler: str | None
    path: Path | None = None
    missing: str | None = None
    """Why there is no kernel, in one sentence."""


def kernel() -> Kernel:
    """The compiled kernel of this machine, compiled now if it is not in the cache.

    >>> kernel().library is not None
    """
    return _kernel(os.environ.get(SWITCH, "1"), str(cache_folder()))


@lru_cache(maxsize=4)
def _kernel(switch: str, cache: str) -> Kernel:
    if switch == "0":
        return Kernel(None, None, missing=f"{SWITCH}=0 leaves the native kernel out")
    compiler, version = _compiler()
    if version is None:
        return Kernel(
            None,
            None,
            missing=f"no C++ compiler was found (tried {compiler}); install g++, or set CXX",
        )
    try:
        path = _compiled(compiler, version, Path(cache) / "kernels")
        return Kernel(_loaded(path), version, path)
    except _BuildFailed as error:
        return Kernel(None, version, missing=str(error))


class _BuildFailed(Exception):
    """The compiler failed; the message is one sentence."""


def _compiler() -> tuple[str, str | None]:
    """The compiler and the first line of its version, None if it does not run."""
    try:
        from torch.utils.cpp_extension import get_cxx_compiler

        name = get_cxx_compiler()
    except ImportError:  # the tools need setuptools
        name = os.environ.get("CXX", "c++")
    try:
        done = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return name, None
    lines = done.stdout.splitlines()
    return name, lines[0] if done.returncode == 0 and lines else None


def processor() -> tuple[str, str]:
    """The name of the processor and its instruction sets, as the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    known = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    named = known.get("model name") or platform.processor() or platform.machine()
    return named, known.get("flags", known.get("Features", ""))


def _compiled(compiler: str, version: str, folder: Path) -> Path:
    import torch

    source = SOURCE.read_bytes()
    terms = (source, *FLAGS, *SHARED, torch.__version__, version, *processor())
    digest = hashlib.sha256(b"\0".join(x if isinstance(x, bytes) else x.encode() for x in terms))
    path = folder / f"sparse_attention-{digest.hexdigest()[:16]}.so"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not path.is_file():
                _compile(compiler, path)
    except OSError as error:
        raise _BuildFailed(f"the cache {folder} cannot be written: {error.strerror}") from error
    return path


def _compile(compiler: str, path: Path) -> None:
    """Write the library beside its place, then move it there: a reader never sees half of it."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as place:
        made = Path(place) / path.name
        try:
            done = subprocess.run(
                [compiler, *FLAGS, *SHARED, "-o", str(made), str(SOURCE)],
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise _BuildFailed(f"{compiler} failed: {error}") from error
        if done.returncode or not made.is_file():
            said = " ".join((done.stderr or done.stdout).split())[:200]
            raise _BuildFailed(f"{compiler} failed with code {done.returncode}: {said}")
        os.replace(made, path)


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name in ("attend", "choose"):
            getattr(library, name).restype = None
    except (OSError, AttributeError) as error:
        raise _BuildFailed(f"the compiled kernel {path.name} cannot be loaded: {error}") from error
    return library
