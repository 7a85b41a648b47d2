"""Documents as inputs of a fixed number of tokens, written to disk as they come."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..display import numbered
from ..errors import EigenlensError
from ..shell import option
from .split import FIT, Split
from .text import Piece


@dataclass(frozen=True)
class DocumentTokens:
    """The token ids of a piece of a document."""

    document: int
    ids: list[int] | np.ndarray
    name: str = ""


@dataclass
class Windows:
    """Inputs on disk: `ids (N, width)` memory-mapped.

    With the number of tokens of each input, and its bucket and document.
    """

    ids: np.ndarray
    lengths: np.ndarray  # (N,) tokens before the padding
    buckets: np.ndarray  # (N,) FIT or the held-out group
    documents: np.ndarray  # (N,)
    named: dict[int, str] = field(default_factory=dict)  # documents by number

    def save(self, folder: Path) -> None:
        np.save(folder / "rows.npy", np.stack([self.lengths, self.buckets, self.documents]))
        (folder / "documents.json").write_text(
            json.dumps(list(self.named.items())), encoding="utf-8"
        )

    @classmethod
    def open(cls, folder: Path) -> Windows:
        try:
            rows = np.load(folder / "rows.npy", allow_pickle=False)
            ids = np.load(folder / "ids.npy", mmap_mode="r", allow_pickle=False)
            named = {
                int(number): str(name)
                for number, name in json.loads((folder / "documents.json").read_text("utf-8"))
            }
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise EigenlensError(
                f"the inputs stored in {folder} cannot be read: {error}"
            ) from error
        whole = all(np.issubdtype(x.dtype, np.integer) and x.ndim == 2 for x in (rows, ids))
        if not whole or len(rows) != 3 or rows.shape[1] > len(ids):
            raise EigenlensError(
                f"the inputs stored in {folder} are not those of a study; start again with"
                f" {option('overwrite')}"
            )
        return cls(ids, rows[0], rows[1], rows[2], named)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(
            np.stack([self.lengths, self.buckets, self.documents]).astype(np.int64).tobytes()
        )
        for start in range(0, len(self.lengths), 4096):
            digest.update(
                np.ascontiguousarray(
                    self.ids[start : min(start + 4096, len(self.lengths))]
                ).tobytes()
            )
        return digest.hexdigest()[:16]


def tokenised(pieces: Iterable[Piece], tokenizer: Any) -> Iterator[DocumentTokens]:
    for piece in pieces:
        yield DocumentTokens(
            piece.document,
            tokenizer(piece.text, add_special_tokens=False, verbose=False)["input_ids"],
            piece.name,
        )


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return what the tokenizer puts before and after a text.

    Such as `[CLS]` and `[SEP]`, only a start, only an end, or nothing.
    """
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    return full[:start], full[start + len(bare) :]


def pack_windows(
    tokens: Iterable[DocumentTokens],
    folder: Path,
    width: int,
    split: Split,
    *,
    around: tuple[list[int], list[int]] = ([], []),
    between: list[int] | None = None,
    pad: int | None = None,
    joined: bool = True,
    what: str = "the text",
) -> Windows:
    """Make inputs of `width` tokens and write them to `folder/ids.npy`.

    Packed (`pad` is None): the documents of a bucket follow each other, with `between` in the
    middle, and are cut every `width` tokens; an input never mixes fit and held-out text. Padded:
    one input per document, cut or filled with `pad`. Not `joined`: one input per document, cut, and
    none of documents that are too short. `around` holds the tokens that start and end
    every input; `what` names the data in error messages.
    """
    before, after = around
    body = width - len(before) - len(after)
    if body < 1:
        raise EigenlensError(
            f"a length of {width} tokens leaves no room besides the {len(before) + len(after)}"
            " special tokens"
        )
    ids = np.lib.format.open_memmap(
        folder / "ids.npy", mode="w+", dtype=np.int32, shape=(split.inputs, width)
    )
    # a full disk is an error here, and would be a bus error later
    with open(folder / "ids.npy", "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, file.seek(0, os.SEEK_END))
    lengths, buckets, documents = (np.zeros(split.inputs, np.int64) for _ in range(3))
    named: dict[int, str] = {}
    held: dict[int, list[int]] = {bucket: [] for bucket in split.quota}
    made, last = dict.fromkeys(split.quota, 0), dict.fromkeys(split.quota, -1)

    def write(bucket: int, text: list[int], document: int, name: str) -> None:
        number, row = sum(made.values()), [*before, *text, *after]
        ids[number, : len(row)] = row
        if len(row) < width:
            ids[number, len(row) :] = pad
        lengths[number], buckets[number], documents[number] = len(row), bucket, document
        if name:
            named[document] = name
        made[bucket] += 1

    for piece in tokens:
        if split.full:
            break
        bucket = split.bucket(piece.document) if len(piece.ids) else None
        if bucket is None:
            continue
        new, last[bucket] = piece.document != last[bucket], piece.document
        if pad is not None or not joined:
            if new and (pad is not None or len(piece.ids) >= body):
                write(bucket, list(piece.ids[:body]), piece.document, piece.name)
            split.made[bucket] = made[bucket]
            continue
        buffer = held[bucket]
        buffer += (between or []) if new and buffer else []
        buffer += [int(i) for i in piece.ids]
        split.made[bucket] = made[bucket]
        while len(buffer) >= body and split.has_room(bucket, started=True):
            write(bucket, buffer[:body], piece.document, piece.name)
            del buffer[:body]
            split.made[bucket] = made[bucket]
        if not split.has_room(bucket, started=True):
            buffer.clear()  # the rest of the document has no place
        split.made[bucket] = made[bucket] + len(buffer) / body
    number = sum(made.values())
    ids.flush()
    windows = Windows(ids[:number], lengths[:number], buckets[:number], documents[:number], named)
    seen, leftover = len(set(documents[:number].tolist())), sum(map(len, held.values()))
    _check(windows, width, split.least, seen, leftover, what)
    return windows


def _check(
    windows: Windows,
    width: int,
    least: tuple[int, int],
    documents_seen: int,
    leftover: int,
    what: str,
) -> None:
    fit, held = int((windows.buckets == FIT).sum()), int((windows.buckets != FIT).sum())
    more = f"give more {'text or a smaller length' if what == 'the text' else 'token ids'}"
    if fit + held == 0 and leftover == 0:
        raise EigenlensError(f"{what} is empty")
    if fit + held == 0 and not any(least):
        raise EigenlensError(f"{what} is too short for one input of {width} tokens; {more}")
    if fit < least[0] or held < least[1]:
        raise EigenlensError(
            f"{what} is too short: with inputs of {width} tokens it gives {numbered(fit, 'input')}"
            f" to fit and {held} to hold out from {numbered(documents_seen, 'document')}, but at"
            f" least {least[0]} and {least[1]} are needed; {more}"
        )
