"""Archives that lie, climb, link, swell and end too soon.

And what an honest reader must give for each.
"""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .mutations import damaged_bytes

WANTED = "package/model/config.json"
NAMES = [
    WANTED,
    "package/model/weights.bin",
    "../outside.txt",
    "../../outside.txt",
    "/tmp/absolute.txt",
    "package/../../outside.txt",
    "./" + WANTED,
    "package/./model/config.json",
    "package//model/config.json",
    WANTED.upper(),
    WANTED + "/",
    WANTED + "\0x",
    "package\\model\\config.json",
    "C:\\x",
    "package/model",
    "",
    ".",
    "..",
    "~/x",
    "x" * 300,
    "package/model/inner.zip",
    "\u202etxt.exe",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
]
KINDS = [
    tarfile.REGTYPE,
    tarfile.AREGTYPE,
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CONTTYPE,
    tarfile.GNUTYPE_SPARSE,
    b"Z",
]
TARGETS = [
    "/etc/passwd",
    "../../../../etc/passwd",
    "package/model/weights.bin",
    WANTED,
    "",
    "/dev/zero",
    ".",
]


METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@dataclass
class Entry:
    """One member: what it is called, what it is, and what it holds or points to."""

    name: str
    kind: bytes
    content: bytes
    target: str = ""


def entries(rng: Random) -> list[Entry]:
    """Members of an archive, the wanted one among them most of the time, in any order, some of them
    twice.
    """
    made = (
        [Entry(WANTED, tarfile.REGTYPE, rng.randbytes(rng.choice([0, 1, 100, 5000])))]
        if rng.random() < 0.8
        else []
    )
    for _ in range(rng.randrange(6)):
        kind = rng.choice(KINDS) if rng.random() < 0.5 else tarfile.REGTYPE
        content = (
            rng.randbytes(rng.choice([0, 10, 3000]))
            if kind in (tarfile.REGTYPE, tarfile.AREGTYPE)
            else b""
        )
        made.append(Entry(rng.choice(NAMES), kind, content, rng.choice(TARGETS)))
    rng.shuffle(made)
    return made


def tar_bytes(members: list[Entry], rng: Random, lies: bool = False) -> bytes:
    """A tar of any dialect, packed by any method.

    With `lies`, extended headers that say what is not so.
    """
    plain = io.BytesIO()
    style = rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
    with tarfile.open(fileobj=plain, mode="w", format=style) as tar:
        for each in members:
            info = tarfile.TarInfo(each.name.replace("\0", "?"))
            info.type, info.linkname, info.size = each.kind, each.target, len(each.content)
            if lies and style == tarfile.PAX_FORMAT and rng.random() < 0.5:
                message = [
                    {"size": "-1"},
                    {"size": "99999999999"},
                    {"path": "../../x"},
                    {"size": "x"},
                    {"GNU.sparse.size": "1e9"},
                ]
                info.pax_headers = rng.choice(
                    [*message, {"linkpath": "/etc/passwd"}, {"GNU.sparse.map": "0,1,99999999,5"}]
                )
            try:
                tar.addfile(info, io.BytesIO(each.content))
            except (ValueError, UnicodeError, tarfile.TarError):
                continue  # this dialect has no way to write it
    return rng.choice([bytes, _gzip, _gzip, bz2.compress, _lzma])(plain.getvalue())


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, 1)


def _lzma(content: bytes) -> bytes:
    return lzma.compress(content, preset=0)


def zip_bytes(members: list[Entry], rng: Random, lies: bool = False) -> bytes:
    """A zip with modes of links and devices, and more than one member of a name.

    With `lies`, sizes that are not so.
    """
    made = io.BytesIO()
    modes = {
        tarfile.SYMTYPE: 0o120777,
        tarfile.CHRTYPE: 0o020666,
        tarfile.DIRTYPE: 0o040755,
        tarfile.FIFOTYPE: 0o010666,
    }
    with zipfile.ZipFile(made, "w") as archive:
        for each in members:
            info = zipfile.ZipInfo(each.name)
            info.external_attr = modes.get(each.kind, rng.choice([0, 0o100644])) << 16
            info.compress_type = rng.choices(METHODS, [8, 8, 2, 1])[0]
            archive._didModify = True
            archive.NameToInfo.pop(info.filename, None)  # two of a name, without the warning
            archive.writestr(info, each.content or each.target)
    content = bytearray(made.getvalue())
    if lies:  # the sizes, the method or the flags of the directory are lies
        at = content.rfind(b"PK\x01\x02")
        if at >= 0:
            where = at + rng.choice([8, 10, 16, 20, 24, 28, 30, 32, 42])
            content[where : where + 4] = struct.pack(
                "<I", rng.choice([0, 1, 99, 0xFFFFFFFF, 0x7FFFFFFF])
            )
    return bytes(content)


def bomb_bytes(rng: Random, size: int) -> tuple[str, bytes]:
    """A small file that would unpack to `size` bytes in the wanted member, or in one before it.

    Name and content.
    """
    before = [] if rng.random() < 0.5 else ["package/filler"]
    zeros = b"\0" * (1 << 20)
    kind = rng.choice(["zip", "gz"])
    made = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name in [*before, WANTED]:
                with archive.open(name, "w", force_zip64=True) as stream:
                    for _ in range(size >> 20):
                        stream.write(zeros)
        return "bomb.whl", made.getvalue()
    with gzip.GzipFile(fileobj=made, mode="w", compresslevel=1) as packed:
        for name in [*before, WANTED]:
            info = tarfile.TarInfo(name)
            info.size = size
            packed.write(info.tobuf())
            for _ in range(size >> 20):
                packed.write(zeros)
    return "bomb.tar.gz", made.getvalue()


def many_members(number: int) -> bytes:
    """A tar.gz of empty members."""
    made = io.BytesIO()
    with gzip.GzipFile(fileobj=made, mode="w", compresslevel=1) as packed:
        for i in range(number):
            packed.write(tarfile.TarInfo(f"package/{i}").tobuf())
    return made.getvalue()


def write_archive(folder: Path, rng: Random) -> tuple[Path, list[Entry] | None]:
    """An archive in a folder; its members where it was left whole, else None."""
    members, lies = entries(rng), rng.random() < 0.2
    if rng.random() < 0.5:
        path, content = (
            folder / rng.choice(["a.whl", "a.zip", "a.bin"]),
            zip_bytes(members, rng, lies),
        )
    else:
        path, content = (
            folder / rng.choice(["a.tar.gz", "a.tgz", "a.tar", "a.bin"]),
            tar_bytes(members, rng, lies),
        )
    whole = rng.random() < 0.5
    path.write_bytes(content if whole else damaged_bytes(content, rng))
    return path, members if whole and not lies else None
