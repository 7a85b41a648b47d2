"""Targets that read data: archives, text, token ids."""

import io
import json
import os
from pathlib import Path
from random import Random

import numpy as np

import eigenlens as el
from eigenlens.data.inputs import Request, prepare
from eigenlens.data.text import pieces
from eigenlens.models import archives

from .archives import WANTED, write_archive
from .guard import Broken
from .mutations import VALUES, damaged_bytes, json_bytes
from .world import WORDS, world


def archive(rng: Random, folder: Path) -> None:
    """A named member of an archive, read and written out."""
    path, members = write_archive(folder, rng)
    out = folder / "out"
    out.mkdir()
    wanted = rng.choice(
        [
            WANTED,
            WANTED,
            WANTED,
            "package/model/weights.bin",
            "../outside.txt",
            "/tmp/absolute.txt",
            "package/model",
            "\0",
            "",
        ]
    )
    archives.extract(path, {wanted: out / "found"})
    if ".." in wanted or wanted.startswith("/"):
        raise Broken(f"{wanted!r} came out of an archive")
    if (
        os.listdir(out) != ["found"]
        or not (out / "found").is_file()
        or (out / "found").is_symlink()
    ):
        raise Broken(f"an archive left {os.listdir(out)}")
    content = (out / "found").read_bytes()
    if archives.member(path, wanted) != content:
        raise Broken("two readings of a member differ")
    named = (
        None
        if members is None
        else [m for m in members if m.name.removeprefix("./").partition("\0")[0] == wanted]
    )
    if named is not None and not any(content in (m.content, m.target.encode()) for m in named):
        raise Broken("a member has another content than was put in")


TEXTS = [
    "plain words",
    "more words",
    "three\n\n",
    "Ω words",
    "fünf",
    "a\n\nb\n\nc",
    "\ufeffwith a mark",
    "ünï\u202e",
    "x" * 3000,
    "\r\n\r\n",
    "\u2028",
    "{}",
    '{"text": "a"}\n{"text": "b"}',
    "\x1a\x00",
]


def text_file(folder: Path, rng: Random) -> Path:
    """Text in a file.

    Whole, cut, in other encodings, of many names, or lines of JSON of any shape.
    """
    path = folder / (
        rng.choice(["a", "b", "c"])
        + rng.choice([".txt", ".md", ".rst", ".jsonl", ".jsonl", "", ".TXT"])
    )
    if path.suffix == ".jsonl" and rng.random() < 0.8:
        lines = []
        for _ in range(rng.randrange(6)):
            value = (
                {"text": rng.choice(TEXTS)}
                if rng.random() < 0.8
                else rng.choice([{"text": rng.choice(VALUES)}, rng.choice(VALUES), {"a": 1}])
            )
            lines.append(
                json.dumps(value).encode()
                if rng.random() < 0.9
                else rng.choice([json_bytes({"text": value}, rng), rng.choice(TEXTS).encode()])
            )
        content = rng.choice([b"\n", b"\n", b"\r\n", b"\n\n"]).join(lines)
    else:
        content = (
            rng.choice(["\n\n", "\n", " "])
            .join(rng.choices(TEXTS[:-1] if rng.random() < 0.9 else TEXTS, k=rng.randrange(8)))
            .encode(rng.choice(["utf-8"] * 8 + ["utf-16", "utf-32"]))
        )
    path.write_bytes(content if rng.random() < 0.7 else damaged_bytes(content, rng))
    return path


def text(rng: Random, folder: Path) -> None:
    """Documents of files and folders of text; what comes out is what went in."""
    data = folder / "data"
    data.mkdir()
    files = [text_file(data, rng) for _ in range(rng.choice([1, 1, 2, 12]))]
    if rng.random() < 0.1:
        os.symlink(rng.choice(["link.txt", "nowhere", str(files[0])]), data / "link.txt")
    if rng.random() < 0.1:
        (data / "folder.txt").mkdir()
    asked = [str(data)] if rng.random() < 0.5 else [str(path) for path in files]
    if rng.random() < 0.05:
        asked = [
            rng.choice(["", "\0", "nowhere", "-\0", "\ud800", "x" * 5000, str(data) + "/a.txt/b"])
        ]
    found = list(pieces(asked, section=rng.choice([8, 16, 1000]), seed=rng.randrange(3)))
    for piece in found:
        if not isinstance(piece.text, str):
            raise Broken(f"a piece of text is {type(piece.text)}")
    if asked == [str(files[0])] and files[0].suffix not in (".jsonl", "", ".TXT"):
        whole = files[0].read_bytes().decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        if "".join("".join(p.text for p in found).split()) != "".join(whole.split()):
            raise Broken("words were lost or gained")


DESCRIPTIONS = [
    "<i4",
    "<i8",
    "|u1",
    "<u8",
    ">i2",
    "|b1",
    "<f8",
    "|O",
    "|S8",
    "<U4",
    "|V8",
    "<M8[s]",
    "<c8",
    "x",
    "",
    "<i4,<i4",
    [("a", "<i4")],
    "<f2",
]


def ids_bytes(rng: Random) -> bytes:
    """Token ids as `.npy`.

    Honest, of other types and orders, with a header that lies, or no array at all.
    """
    shape = rng.choice(
        [(200,), (200,), (30, 8), (30, 8), (8, 30), (0,), (), (1,), (5, 5, 5), (3, 8)]
    )
    highest = rng.choice([len(WORDS)] * 6 + [len(WORDS) + 1, 1000])
    drawn = np.random.default_rng(rng.randrange(1 << 32)).integers(
        rng.choice([0, 0, 0, 0, 0, -3]), highest, shape
    )
    ids = drawn.astype(rng.choice(["<i4", "<i8", "<u2", ">i4", "<u8", "|u1", "<i4", "<f4", "bool"]))
    made = io.BytesIO()
    kind = rng.randrange(9)
    if kind == 0:
        np.save(made, np.array([os.system, [1, 2]], dtype=object), allow_pickle=True)
    elif kind == 1:
        np.savez(made, ids)
    else:
        np.save(made, np.asfortranarray(ids) if rng.random() < 0.3 else ids)
    content = made.getvalue()
    if kind == 2:  # the header again, with lies
        shapes = [
            shape,
            (-1,),
            (1 << 40,),
            (1 << 62, 8),
            (2**63,),
            (3.5,),
            "x",
            (True,),
            (10**30,),
            (1 << 61,),
            None,
            [8],
        ]
        header = repr(
            {
                "descr": rng.choice(DESCRIPTIONS),
                "fortran_order": rng.choice([True, False, 0, None, "x"]),
                "shape": rng.choice(shapes),
            }
        )
        header = rng.choice(
            [
                header,
                header,
                header[:-1],
                "__import__('os')",
                "(" * 5000 + ")" * 5000,
                "{" + "[" * 200,
                header + " " * 20000,
                "[" * 9 + "1",
            ]
        )
        padded = header.encode("latin-1") + b"\n"
        version = rng.choice([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"])
        size = rng.choice([len(padded), len(padded), 0, 0xFFFF])
        content = (
            b"\x93NUMPY"
            + version
            + size.to_bytes(2 if version == b"\x01\x00" else 4, "little")
            + padded
            + ids.tobytes()
        )
    if kind == 3:
        content = damaged_bytes(content, rng)
    return content


def read_ids(content: bytes, folder: Path) -> None:
    """Inputs of a study from the bytes of a `.npy` file.

    Each of them ids of the vocabulary, in the order of the file.
    """
    path, spool = folder / "ids.npy", folder / "spool"
    path.write_bytes(content)
    spool.mkdir()
    model = bert()
    inputs = prepare(model, Request((str(path),), max_length=8, max_inputs=6), spool)
    for bucket in inputs.groups:
        for _, batch in inputs.batches(bucket, 4):
            ids = batch["input_ids"]
            if ids.shape[1] != 8 or not bool(((ids >= 0) & (ids < len(WORDS))).all()):
                raise Broken(f"inputs {tuple(ids.shape)} from {int(ids.min())} to {int(ids.max())}")
    # an independent reader agrees that these are the ids
    message = np.load(path, allow_pickle=False).reshape(-1)
    kept = np.concatenate(
        [
            batch["input_ids"].numpy().reshape(-1)
            for bucket in inputs.groups
            for _, batch in inputs.batches(bucket, 4)
        ]
    )
    if not set(kept.tolist()) <= set(message.tolist()):
        raise Broken("there are ids in the inputs that are not in the file")


def token_ids(rng: Random, folder: Path) -> None:
    read_ids(ids_bytes(rng), folder)


_MODEL: list[el.Model] = []


def bert() -> "el.Model":
    if not _MODEL:
        _MODEL.append(el.load(world() / "bert"))
    return _MODEL[0]
