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
import shlex
import shutil
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
    return _kernel(os.environ.get(SWITCH), os.environ.get("CXX"), str(cache_folder()))


@lru_cache(maxsize=4)
def _kernel(switch: str | None, _cxx: str | None, cache: str) -> Kernel:
    if switch == "0":
        return Kernel(None, None, missing=f"{SWITCH}=0 leaves the native kernel out")
    version = None
    try:
        compiler, version = _compiler()
        path, library = _compiled(compiler, version, Path(cache) / "kernels")
    except _BuildFailed as error:
        return Kernel(None, version, missing=" ".join(str(error).split()))
    return Kernel(library, version, path)


class _BuildFailed(Exception):
    """The compiler failed; the message is one sentence."""


def _compiler() -> tuple[list[str], str]:
    """The command of the compiler, and the first line of its version."""
    try:
        from torch.utils.cpp_extension import get_cxx_compiler

        named = get_cxx_compiler()
    except ImportError:  # the tools need setuptools
        named = os.environ.get("CXX", "c++")
    try:
        command = [named] if shutil.which(named) else shlex.split(named)  # such as `ccache g++`
        done = _ran([*command, "--version"], 60)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _BuildFailed(
            f"no C++ compiler was found (tried {named}); install g++, or set CXX"
        ) from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise _BuildFailed(
            f"the C++ compiler {named} does not tell its version (it ended with code"
            f" {done.returncode}); install g++, or set CXX"
        )
    return command, lines[0]


def _ran(command: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with what it printed, in whatever encoding."""
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds
    )


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


def _compiled(compiler: list[str], version: str, folder: Path) -> tuple[Path, ctypes.CDLL]:
    import torch

    source = SOURCE.read_bytes()
    terms = (source, *FLAGS, *SHARED, torch.__version__, version, *processor())
    digest = hashlib.sha256(b"\0".join(x if isinstance(x, bytes) else x.encode() for x in terms))
    path = folder / f"sparse_attention-{digest.hexdigest()[:16]}.so"
    try:
        if (found := _kept(path)) is not None:
            return path, found
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if (found := _kept(path)) is None:
                found = _compile(compiler, path)
    except (OSError, NotImplementedError) as error:  # the latter by a disk that locks no files
        why = getattr(error, "strerror", None) or error
        raise _BuildFailed(f"the cache {folder} cannot be written: {why}") from error
    return path, found


def _kept(path: Path) -> ctypes.CDLL | None:
    """The library in the cache; None if there is none, or it is not what was compiled.

    To load half a library would end the process, so its digest is compared first.
    """
    try:
        if path.with_suffix(".sha256").read_text(encoding="utf-8") == _digest(path):
            return _loaded(path)
    except (FileNotFoundError, UnicodeDecodeError, _BuildFailed):
        pass
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compile(compiler: list[str], path: Path) -> ctypes.CDLL:
    """Write the library beside its place, load it, then move it there.

    A reader never sees half of it, nor anything that cannot be loaded.
    """
    name = " ".join(compiler)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as place:
        made = Path(place) / path.name
        try:
            done = _ran([*compiler, *FLAGS, *SHARED, "-o", str(made), str(SOURCE)], SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise _BuildFailed(f"{name} failed: {error}") from error
        if done.returncode or not made.is_file():
            said = " ".join((done.stderr or done.stdout).split())[:200]
            raise _BuildFailed(f"{name} failed with code {done.returncode}: {said or 'no message'}")
        library, digest = _loaded(made), made.with_suffix(".sha256")
        digest.write_text(_digest(made), encoding="utf-8")
        os.replace(digest, path.with_suffix(".sha256"))
        os.replace(made, path)
    return library


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name in ("attend", "choose"):
            getattr(library, name).restype = None
    except (OSError, AttributeError) as error:
        raise _BuildFailed(f"the compiled kernel {path.name} cannot be loaded: {error}") from error
    return library
