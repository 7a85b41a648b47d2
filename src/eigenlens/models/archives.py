"""Read named members of an archive (wheel, tar, Debian package), and nothing else.

The caller names each member and where it goes; the archive decides nothing. A path that leads out
of the archive is refused, and so is a member that is a link, a device or a folder instead of a
regular file. An archive that unpacks to far more than its own size, or has too many members, is
refused before it fills memory or disk.
"""

import bz2
import gzip
import io
import lzma
import shutil
import stat
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from eigenlens.errors import EigenlensError

MOST_MEMBERS = 100_000
SPARE, RATIO = 64 << 20, 64
"""An archive of n bytes may unpack to `SPARE + RATIO·n`.

Texts and weights shrink to a third, rarely to a twentieth.
"""
UNREADABLE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
)
"""What readers of the standard library raise if an archive is cut short, encrypted or invalid."""


def member(archive: Path, path: str) -> bytes:
    """Return the content of one member."""
    with open_member(archive, path) as stream:
        return stream.read()


def extract(archive: Path, members: dict[str, Path]) -> None:
    """Write each named member to its own destination.

    `{"package/model/config.json": folder / "config.json"}`.
    """
    for path, destination in members.items():
        with open_member(archive, path) as stream, destination.open("wb") as file:
            shutil.copyfileobj(stream, file)


@contextmanager
def open_member(archive: Path, path: str) -> Iterator[IO[bytes]]:
    """Open one member as a stream, so that a large one need not fit in memory."""
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise EigenlensError(
            f"{archive.name}: member {path!r} points outside of the archive and is refused."
        )
    opened = _opened(archive, path)
    stream = next(opened)
    try:
        yield stream
    finally:
        opened.close()


def _opened(archive: Path, path: str) -> Generator[IO[bytes], None, None]:
    """Yield the stream once; closing it closes everything it reads from."""
    try:
        if archive.suffix == ".deb":
            with _debian_stream(archive) as unpacked, _tar_of(archive, unpacked) as tar:
                yield _checked(archive, _tar_member(tar, archive, path))
        elif zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped, _zip_member(zipped, archive, path) as content:
                yield _checked(archive, content)
        else:
            with _unpacked(archive) as unpacked, _tar_of(archive, unpacked) as tar:
                yield _checked(archive, _tar_member(tar, archive, path))
    except UNREADABLE as error:
        raise _broken(archive, error) from error


class _Checked(io.RawIOBase):
    """A stream with a limit.

    It raises an error of one sentence if it cannot be read or yields more than is allowed.
    """

    def __init__(self, archive: Path, stream: IO[bytes]) -> None:
        self.archive, self.stream, self.count, self.most = archive, stream, 0, _most(archive)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self.stream.read(len(buffer))
        except UNREADABLE as error:
            raise _broken(self.archive, error) from error
        self.count += len(found)
        if self.count > self.most:
            raise _too_large(self.archive)
        buffer[: len(found)] = found
        return len(found)


def _checked(archive: Path, stream: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(_Checked(archive, stream), 1 << 16)


@contextmanager
def _unpacked(archive: Path) -> Iterator[IO[bytes]]:
    """Return the content of a tar that may be compressed as a whole."""
    with archive.open("rb") as file:
        start = file.read(6)
    opens: Any = open
    for magic, kind in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            opens = kind
    with opens(archive, "rb") as stream:
        yield stream


def _tar_of(archive: Path, unpacked: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=_checked(archive, unpacked), mode="r|")


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
    for number, info in enumerate(tar, 1):
        if number > MOST_MEMBERS:
            raise _too_many(archive)
        # reading on would skip that many bytes, be they there or not
        if info.size > _most(archive):
            raise _too_large(archive)
        # the archive would keep a record of every member that passed
        tar.members.clear()  # type: ignore[attr-defined]
        if info.name.removeprefix("./") != path:
            continue
        # a sparse file has as many bytes as it says, out of nothing
        if not info.isreg() or info.issparse():
            raise _not_regular(archive, path)
        content = tar.extractfile(info)
        assert content is not None
        return content
    raise _absent(archive, path)


def _zip_member(zipped: zipfile.ZipFile, archive: Path, path: str) -> IO[bytes]:
    if len(zipped.infolist()) > MOST_MEMBERS:
        raise _too_many(archive)
    try:
        info = zipped.getinfo(path)
    except KeyError:
        raise _absent(archive, path) from None
    kind = stat.S_IFMT(info.external_attr >> 16)
    # Archives written on other systems carry no mode at all; such a member can only be a file or a
    # folder.
    if info.is_dir() or kind not in (0, stat.S_IFREG):
        raise _not_regular(archive, path)
    return zipped.open(info)


def _broken(archive: Path, error: Exception) -> EigenlensError:
    message = " ".join(str(error).split())[:200]
    return EigenlensError(
        f"Cannot read {archive.name} as an archive ({message}). Delete it and try again."
    )


def _most(archive: Path) -> int:
    return SPARE + RATIO * archive.stat().st_size


def _too_large(archive: Path) -> EigenlensError:
    return EigenlensError(
        f"{archive.name} would unpack to more than {_most(archive):,} bytes, over {RATIO} times its"
        " size, and is refused."
    )


def _too_many(archive: Path) -> EigenlensError:
    return EigenlensError(f"{archive.name} has more than {MOST_MEMBERS:,} members and is refused.")


def _absent(archive: Path, path: str) -> EigenlensError:
    return EigenlensError(
        f"{archive.name} has no member {path[:200]!r}, so it is not the archive that eigenlens"
        " expects."
    )


def _not_regular(archive: Path, path: str) -> EigenlensError:
    return EigenlensError(
        f"{archive.name}: member {path!r} is a link, device or folder, not a file, and is refused."
    )
