"""Text as a stream of documents, from files, folders, standard input or a named data set."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from ..errors import EigenlensError
from ..names import did_you_mean
from . import datasets
from .json_lines import json_texts

SUFFIXES = {".txt", ".md", ".rst", ".jsonl"}
MANY_FILES = 10
"""From this many files on, each file is one document.

Fewer files are cut into sections, so that some can be held out.
"""
CHUNK = 1 << 16
NAMED = [name for name, data in datasets.DATASETS.items() if data.kind == "text"]


@dataclass(frozen=True)
class Piece:
    """A part of a text, and the document it belongs to.

    A long document comes in several pieces.
    """

    document: int
    text: str
    name: str = ""


def pieces(data: Sequence[str | Path], section: int, seed: int = 0) -> Iterator[Piece]:
    """Stream the documents of `data`.

    File and folder paths, `-` for standard input, names of data sets.

    At most about `max(section, 64 kB)` characters are in memory. With ten files or more, each file
    is one document. Fewer are cut into sections of at least `section` characters that end at a
    blank line. In a `.jsonl` file every line is a document: its `text`, its only string, or the
    field named after the file name, `reviews.jsonl:body`. Lists of files and named sets come in an
    order drawn from `seed`; a file is read from its start.
    """
    sources: list[tuple[Path | str, str | None]] = []  # each with the field that was named
    for item in map(str, data):
        path = Path(item)
        if item == "-" or item in NAMED:
            sources.append((item, None))
        elif _too_long(path):
            raise EigenlensError(f"no such data: {item[:80]!r}… cannot be the name of a file")
        elif path.is_dir():
            found = [p for p in sorted(path.rglob("*")) if p.suffix in SUFFIXES and p.is_file()]
            if not found:
                raise EigenlensError(f"{path} has no text files ({', '.join(sorted(SUFFIXES))})")
            sources += [(file, None) for file in found]
        elif path.is_file():
            sources.append((path, None))
        elif (parted := _file_and_field(item)) is not None:
            sources.append(parted)
        else:
            known = ", ".join(NAMED)
            raise EigenlensError(
                f"no such data: {item!r}{did_you_mean(item, NAMED)} is not a file, a folder or a"
                f" named text ({known})"
            )
    if sources.count(("-", None)) > 1:
        raise EigenlensError("standard input is named twice, but can be read only once")
    random.Random(seed).shuffle(sources)
    files = sum(isinstance(source, Path) for source, _ in sources)
    document = -1
    for source, field in sources:
        if source in NAMED:
            texts = datasets.text(str(source))
            for text in _shuffled(texts, seed):
                document += 1
                yield Piece(document, text, f"{source}, text {document}")
            continue
        try:
            stream = sys.stdin.buffer if source == "-" else open(source, "rb")  # noqa: SIM115
        except OSError as error:
            raise EigenlensError(f"{source} cannot be read: {error.strerror}") from error
        with stream:
            label = "standard input" if source == "-" else str(source)
            if isinstance(source, Path) and source.suffix == ".jsonl":
                for number, text in json_texts(stream, label, field):
                    document += 1
                    yield Piece(document, text, f"{label}, line {number}")
                continue
            whole = files >= MANY_FILES
            document += whole
            for number, text in enumerate(_sections(_characters(stream, label), section), 1):
                document += not whole
                yield Piece(document, text, label if whole else f"{label}, section {number}")


def whole_documents(texts: Iterator[Piece], least: int) -> Iterator[Piece]:
    """One piece per document of at least so many bytes, up to 32 times as many characters.

    What has fewer bytes cannot have as many tokens.
    """
    held: list[Piece] = []
    for piece in texts:
        if held and piece.document != held[0].document:
            yield from _one_piece(held, least)
            held = []
        if sum(len(part.text) for part in held) < 32 * least:
            held.append(piece)
    yield from _one_piece(held, least)


def _one_piece(parts: list[Piece], least: int) -> Iterator[Piece]:
    text = "".join(part.text for part in parts)
    if len(text.encode(errors="replace")) >= least:
        yield replace(parts[0], text=text)


def _file_and_field(item: str) -> tuple[Path, str] | None:
    """Split `reviews.jsonl:body` into file and field, if there is such a file."""
    name, colon, field = item.rpartition(":")
    return (
        (Path(name), field)
        if colon and field and name.endswith(".jsonl") and Path(name).is_file()
        else None
    )


def _too_long(path: Path) -> bool:
    """Whether the system knows from the name alone that there is no such file."""
    try:
        path.exists()
    except OSError:
        return True
    return False


def _shuffled(texts: Iterator[str], seed: int, window: int = 256) -> Iterator[str]:
    """Shuffle a stream within a window: a small set entirely, a large one locally."""
    held: list[str] = []
    rng = random.Random(seed)
    for text in texts:
        held.append(text)
        if len(held) == window:
            rng.shuffle(held)
            yield from held
            held = []
    rng.shuffle(held)
    yield from held


def _characters(stream: BinaryIO, label: str) -> Iterator[str]:
    reader = io.TextIOWrapper(stream, encoding="utf-8", errors="strict", newline=None)
    try:
        while chunk := reader.read(CHUNK):
            if "\0" in chunk:
                raise EigenlensError(f"{label} is binary, not text (it holds NUL bytes)")
            yield chunk
    except UnicodeDecodeError as error:
        raise EigenlensError(
            f"{label} is not UTF-8 text (byte 0x{error.object[error.start]:02x}: {error.reason})"
        ) from error


def _sections(chunks: Iterator[str], section: int) -> Iterator[str]:
    """Cut at the first blank line after `section` characters.

    If there is none within four times that, at the end of a line or anywhere.
    """
    held = ""
    for chunk in chunks:
        held += chunk
        while len(held) > 4 * section:
            cut = held.find("\n\n", section, 4 * section)
            cut = cut if cut >= 0 else held.rfind("\n", section, 4 * section)
            cut = cut if cut >= 0 else held.rfind(" ", section, 4 * section)
            cut = cut if cut >= 0 else 4 * section
            yield held[:cut]
            held = held[cut:].lstrip("\n")
    while len(held) > 2 * section and (cut := held.find("\n\n", section)) >= 0:
        yield held[:cut]
        held = held[cut:].lstrip("\n")
    if held.strip():
        yield held
